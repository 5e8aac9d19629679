// The chat page: turns in an array, a view of them, and one answer at a time.

import { ApiError, fetchModel, streamAnswer } from "./api.js";
import * as store from "./store.js";
import { emptyNote, turnView } from "./view.js";

const byId = (id) => document.getElementById(id);
const THEMES = ["auto", "light", "dark"];
const THEME_SIGNS = { auto: "◐", light: "☀", dark: "☾" };

let turns = store.loadConversation();
let settings = store.loadSettings();
let key = store.loadKey();
let theme = store.loadTheme();
let contextLength = 0;
let running = null; // the AbortController of the answer that is being written
let isFrameDue = false;

function showAll() {
  const isAtEnd = nearEnd();
  byId("messages").replaceChildren(
    ...turns.map((turn, index) => turnView(turn, index === turns.length - 1, actions)),
  );
  if (!turns.length) byId("messages").append(emptyNote());
  if (isAtEnd) scrollToEnd();
}

// While an answer grows only its own turn is drawn again, once per frame.
function showLast() {
  if (isFrameDue) return;
  isFrameDue = true;
  requestAnimationFrame(() => {
    isFrameDue = false;
    const last = byId("messages").lastElementChild;
    if (!last || !turns.length) return;
    const isAtEnd = nearEnd();
    last.replaceWith(turnView(turns.at(-1), true, actions));
    if (isAtEnd) scrollToEnd();
  });
}

function nearEnd() {
  const box = byId("messages");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function scrollToEnd() {
  const box = byId("messages");
  box.scrollTop = box.scrollHeight;
}

function showUsage(usage) {
  const used = usage.prompt_tokens + usage.completion_tokens;
  byId("context").textContent = contextLength ? `${used} of ${contextLength} tokens` : `${used} tokens`;
}

function say(text) {
  byId("status").textContent = text;
}

// Only what the API needs of each turn; thoughts go back beside calls, where the model wants them.
function wireMessages() {
  const messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const turn of turns) {
    if (turn.role === "assistant") {
      if (turn.isRunning) continue;
      const message = { role: "assistant", content: turn.content };
      if (turn.calls.length) {
        message.tool_calls = turn.calls.map((call) => ({
          id: call.id,
          type: "function",
          function: { name: call.name, arguments: call.arguments },
        }));
        if (turn.thought) message.reasoning_content = turn.thought;
      }
      messages.push(message);
    } else if (turn.role === "tool") {
      messages.push({ role: "tool", tool_call_id: turn.callId, content: turn.content });
    } else {
      messages.push({ role: "user", content: turn.content });
    }
  }
  return messages;
}

function requestBody() {
  const body = { messages: wireMessages(), reasoning_effort: settings.thinking ? "high" : "none" };
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.seed !== "") body.seed = Number(settings.seed);
  if (settings.limit !== "") body.max_tokens = Number(settings.limit);
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

async function answer() {
  const turn = { role: "assistant", content: "", thought: "", calls: [], isRunning: true };
  running = new AbortController();
  showRunning(true);
  let firstAt = 0;
  try {
    const body = requestBody();
    turns.push(turn);
    showAll();
    scrollToEnd();
    say("Answering");
    for await (const event of streamAnswer(body, key, running.signal)) {
      firstAt ||= performance.now();
      apply(turn, event, firstAt);
      showLast();
    }
    say(`Answer: ${turn.content.slice(0, 2000)}`);
  } catch (error) {
    if (error.name === "AbortError") {
      turn.finish = "stopped";
      say("Stopped");
    } else {
      turn.finish = "error";
      turn.error = error.message;
      say(`Error: ${error.message}`);
      if (!turns.includes(turn)) turns.push(turn);
      if (error instanceof ApiError && error.status === 401) openSettings("setting-key");
    }
  }
  turn.isRunning = false;
  running = null;
  showRunning(false);
  store.saveConversation(turns);
  showAll();
}

function apply(turn, event, firstAt) {
  if (event.thought) turn.thought += event.thought;
  if (event.content) turn.content += event.content;
  if (event.call) {
    const call = (turn.calls[event.call.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= event.call.id;
    call.name ||= event.call.name;
    call.arguments += event.call.arguments;
  }
  if (event.finish) turn.finish = event.finish;
  if (event.usage) {
    turn.numTokens = event.usage.completion_tokens;
    const seconds = (performance.now() - firstAt) / 1000;
    // A call comes in one piece, which tells nothing of the time that it took.
    if (seconds > 0.05 && turn.numTokens > 1) turn.speed = (turn.numTokens - 1) / seconds;
    showUsage(event.usage);
  }
}

function showRunning(isRunning) {
  byId("stop").hidden = !isRunning;
  byId("send").hidden = isRunning;
  byId("messages").setAttribute("aria-busy", String(isRunning));
}

const actions = {
  retry() {
    if (running) return;
    if (turns.at(-1)?.role === "assistant") turns.pop();
    answer();
  },
  answerCalls(results) {
    const last = turns.at(-1);
    if (running || last?.role !== "assistant") return;
    last.calls.forEach((call, index) => {
      turns.push({ role: "tool", name: call.name, callId: call.id, content: results[index] });
    });
    answer();
  },
};

function send() {
  const box = byId("message");
  const text = box.value.trim();
  if (!text || running) return;
  box.value = "";
  fit(box);
  turns.push({ role: "user", content: text });
  answer();
}

function stop() {
  running?.abort();
}

function fit(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function openSettings(focusOn) {
  for (const name of ["system", "temperature", "seed", "limit", "tools"]) {
    byId(`setting-${name}`).value = settings[name];
  }
  byId("setting-thinking").checked = settings.thinking;
  byId("setting-key").value = key;
  byId("tools-error").textContent = "";
  if (!byId("settings").open) byId("settings").showModal();
  if (focusOn) byId(focusOn).focus();
}

function readTools() {
  const text = byId("setting-tools").value.trim();
  if (!text) return true;
  try {
    if (Array.isArray(JSON.parse(text))) return true;
    byId("tools-error").textContent = "The tools are not a list.";
  } catch (error) {
    byId("tools-error").textContent = `The tools are not JSON: ${error.message}`;
  }
  return false;
}

function keepSettings() {
  for (const name of ["system", "temperature", "seed", "limit"]) {
    settings[name] = byId(`setting-${name}`).value;
  }
  settings.thinking = byId("setting-thinking").checked;
  if (readTools()) settings.tools = byId("setting-tools").value;
  store.saveSettings(settings);
  const oldKey = key;
  key = byId("setting-key").value;
  store.saveKey(key);
  if (key !== oldKey) showModel();
}

function showTheme() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = THEME_SIGNS[theme];
  byId("theme").title = `Colours: ${theme}`;
}

async function showModel() {
  try {
    const model = await fetchModel(key);
    contextLength = model.contextLength;
    byId("model").textContent = model.name;
  } catch (error) {
    byId("model").textContent = error.status === 401 ? "an API key is needed" : "no connection";
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
byId("message").addEventListener("input", (event) => fit(event.target));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("settings").open) stop();
});
byId("stop").addEventListener("click", stop);
byId("new").addEventListener("click", () => {
  stop();
  turns = [];
  store.saveConversation(turns);
  byId("context").textContent = "";
  showAll();
  byId("message").focus();
});
byId("open-settings").addEventListener("click", () => openSettings());
byId("settings").addEventListener("close", keepSettings);
byId("settings").querySelector("form").addEventListener("submit", (event) => {
  if (!readTools()) event.preventDefault();
});
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  store.saveTheme(theme);
  showTheme();
});

showTheme();
showAll();
scrollToEnd();
showModel();
