// Turns as DOM nodes. Knows what a turn is; not where it comes from or goes to.

import { element, renderMarkdown } from "./markdown.js";

const FINISHES = { length: "cut off at the limit", stopped: "stopped", error: "failed" };

export function emptyNote() {
  return element("p", { className: "empty" }, "Nothing here yet. What you write stays on your machine.");
}

// `actions`: retry(), answerCalls(results). Only the last turn can be acted on.
export function turnView(turn, isLast, actions) {
  const node = element("article", { className: `turn ${turn.role}` });
  if (turn.role === "user") {
    node.setAttribute("aria-label", "You");
    node.append(element("div", { className: "body" }, turn.content));
    return node;
  }
  if (turn.role === "tool") {
    node.setAttribute("aria-label", "Result of a tool");
    const pre = element("pre", {}, turn.content);
    node.append(element("div", { className: "call" }, element("strong", {}, `Result of ${turn.name}`), pre));
    return node;
  }
  node.setAttribute("aria-label", "Culet");
  if (turn.thought) node.append(thoughtView(turn));
  const body = element("div", { className: "body" });
  body.append(renderMarkdown(turn.content));
  if (turn.isRunning && !turn.content && !turn.thought) body.classList.add("waiting");
  node.append(body);
  const canAnswer = isLast && !turn.isRunning && turn.calls.length > 0;
  node.append(...callViews(turn, canAnswer, actions));
  if (turn.error) node.append(element("p", { className: "error" }, turn.error));
  if (!turn.isRunning) node.append(footView(turn, isLast, actions));
  return node;
}

function thoughtView(turn) {
  const isThinking = turn.isRunning && !turn.content;
  const title = isThinking ? "Thinking…" : "Thought";
  const details = element("details", { open: turn.isThoughtOpen ?? false });
  details.append(element("summary", {}, title), element("div", { className: "thought" }, turn.thought));
  details.addEventListener("toggle", () => { turn.isThoughtOpen = details.open; });
  return details;
}

function callViews(turn, canAnswer, actions) {
  const boxes = [];
  const nodes = turn.calls.map((call) => {
    const node = element(
      "div",
      { className: "call" },
      element("strong", {}, `Calls ${call.name}`),
      element("pre", {}, element("code", {}, pretty(call.arguments))),
    );
    if (canAnswer) {
      const box = element("textarea", { rows: 2 });
      boxes.push(box);
      node.append(element("label", {}, "Result ", box));
    }
    return node;
  });
  if (canAnswer) {
    const button = element("button", { type: "button", textContent: "Send results" });
    button.addEventListener("click", () => actions.answerCalls(boxes.map((box) => box.value)));
    nodes.push(button);
  }
  return nodes;
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function footView(turn, isLast, actions) {
  const foot = element("div", { className: "foot" });
  const notes = [];
  if (turn.speed) notes.push(`${turn.speed.toFixed(1)} tokens/s`);
  if (turn.numTokens) notes.push(`${turn.numTokens} tokens`);
  if (FINISHES[turn.finish]) notes.push(FINISHES[turn.finish]);
  foot.append(element("span", { className: "quiet" }, notes.join(" · ")));
  if (isLast) {
    const retry = element("button", { type: "button", textContent: "Retry" });
    retry.addEventListener("click", actions.retry);
    foot.append(retry);
  }
  return foot;
}
