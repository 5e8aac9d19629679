// Markdown to DOM nodes. Text only ever becomes text nodes: nothing that a model writes is parsed
// as HTML, and links go to the web or to mail.

const SAFE_LINK = /^(https?:|mailto:)/i;
const FENCE = /^(\s*)(```+|~~~+)\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s*>\s?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 12;

export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

export function renderMarkdown(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...blocks(text.split("\n"), 0));
  return fragment;
}

function blocks(lines, depth) {
  if (depth > MAX_DEPTH) return [element("p", {}, lines.join("\n"))];
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
    } else if (FENCE.test(line)) {
      at = fence(lines, at, out);
    } else if (HEADING.test(line)) {
      const [, marks, title] = HEADING.exec(line);
      const level = Math.min(marks.length + 1, 6);
      out.push(element(`h${level}`, {}, ...inline(title.replace(/\s#+\s*$/, ""))));
      at += 1;
    } else if (RULE.test(line)) {
      out.push(element("hr"));
      at += 1;
    } else if (QUOTE.test(line)) {
      const quoted = [];
      while (at < lines.length && QUOTE.test(lines[at])) quoted.push(QUOTE.exec(lines[at++])[1]);
      out.push(element("blockquote", {}, ...blocks(quoted, depth + 1)));
    } else if (ITEM.test(line)) {
      at = list(lines, at, out, depth);
    } else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) {
      at = table(lines, at, out);
    } else {
      at = paragraph(lines, at, out);
    }
  }
  return out;
}

function fence(lines, at, out) {
  const [, indent, marks, language] = FENCE.exec(lines[at]);
  const body = [];
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(marks) && !line.trim().slice(marks.length).trim();
  while (end < lines.length && !closes(lines[end])) {
    const line = lines[end++];
    body.push(line.startsWith(indent) ? line.slice(indent.length) : line);
  }
  out.push(codeBlock(body.join("\n"), language));
  return end + 1;
}

function codeBlock(text, language) {
  const copy = element("button", { type: "button", textContent: "Copy" });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Could not copy";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const head = element("div", { className: "code-head" }, element("span", {}, language || "text"), copy);
  const pre = element("pre", { tabIndex: 0 }, element("code", {}, text));
  return element("div", { className: "code" }, head, pre);
}

function list(lines, at, out, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(marker);
  const node = element(isOrdered ? "ol" : "ul");
  if (isOrdered) node.start = parseInt(marker, 10);
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || match[1].length !== indent.length || /\d/.test(match[2]) !== isOrdered) break;
    const inner = [match[3]];
    const width = indent.length + 2;
    at += 1;
    while (at < lines.length) {
      const line = lines[at];
      const isDeeper = line.length - line.trimStart().length >= width;
      const isBlankInside = !line.trim() && (lines[at + 1] ?? "").startsWith(" ".repeat(width));
      if (!isDeeper && !isBlankInside) break;
      inner.push(line.slice(Math.min(width, line.length - line.trimStart().length)));
      at += 1;
    }
    const children = blocks(inner, depth + 1);
    // One paragraph alone is the item itself.
    const flat = children[0]?.tagName === "P" ? [...children[0].childNodes, ...children.slice(1)] : children;
    node.append(element("li", {}, ...flat));
    if (!lines[at]?.trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  out.push(node);
  return at;
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, "|"));
}

function table(lines, at, out) {
  const head = cells(lines[at]);
  const row = (values, tag) =>
    element("tr", {}, ...head.map((_, i) => element(tag, {}, ...inline(values[i] ?? ""))));
  const body = element("tbody");
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) {
    body.append(row(cells(lines[end++]), "td"));
  }
  out.push(element("table", {}, element("thead", {}, row(head, "th")), body));
  return end;
}

function paragraph(lines, at, out) {
  const node = element("p");
  let isFirst = true;
  while (at < lines.length && lines[at].trim()) {
    const line = lines[at];
    if (!isFirst && [FENCE, HEADING, RULE, QUOTE, ITEM].some((p) => p.test(line))) break;
    if (!isFirst) node.append(element("br"));
    node.append(...inline(line.trim()));
    isFirst = false;
    at += 1;
  }
  out.push(node);
  return at;
}

const SPANS = [
  { pattern: /(`+)([\s\S]*?[^`])\1(?!`)/, make: (m) => element("code", {}, m[2].trim()) },
  { pattern: /!?\[([^\]]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"]*")?\)/, make: link },
  { pattern: /\*\*(?=\S)([\s\S]*?\S)\*\*/, make: (m, d) => element("strong", {}, ...inline(m[1], d)) },
  { pattern: /__(?=\S)([\s\S]*?\S)__(?!\w)/, make: (m, d) => element("strong", {}, ...inline(m[1], d)) },
  { pattern: /~~(?=\S)([\s\S]*?\S)~~/, make: (m, d) => element("s", {}, ...inline(m[1], d)) },
  { pattern: /\*(?=[^\s*])([^*]*[^\s*])\*/, make: (m, d) => element("em", {}, ...inline(m[1], d)) },
  { pattern: /(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)/, make: (m, d) => element("em", {}, ...inline(m[1], d)) },
  { pattern: /https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"]/, make: (m) => anchor(m[0], [m[0]]) },
];

function anchor(target, children) {
  return element("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

function link(match, depth) {
  const [whole, label, target] = match;
  if (!SAFE_LINK.test(target)) return document.createTextNode(whole);
  // Pictures are not loaded: that would tell their host who reads what.
  return anchor(target, whole.startsWith("!") ? [`[picture] ${label || target}`] : inline(label, depth));
}

function inline(text, depth = 0) {
  if (depth > MAX_DEPTH) return [document.createTextNode(text)];
  const out = [];
  let rest = text;
  while (rest) {
    let best = null;
    for (const span of SPANS) {
      const match = span.pattern.exec(rest);
      if (match && (best === null || match.index < best.match.index)) best = { span, match };
    }
    if (best === null) break;
    if (best.match.index) out.push(document.createTextNode(plain(rest.slice(0, best.match.index))));
    out.push(best.span.make(best.match, depth + 1));
    rest = rest.slice(best.match.index + best.match[0].length);
  }
  if (rest) out.push(document.createTextNode(plain(rest)));
  return out;
}

function plain(text) {
  return text.replace(/\\([\\`*_{}[\]()#+\-.!|~>])/g, "$1");
}
