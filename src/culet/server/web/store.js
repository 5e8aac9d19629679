// What the browser keeps: the conversation, settings and theme. The key lasts as long as the tab.

const CONVERSATION = "culet.conversation";
const SETTINGS = "culet.settings";
const THEME = "culet.theme";
const KEY = "culet.key";

const DEFAULTS = { system: "", temperature: "", seed: "", limit: "", thinking: false, tools: "" };

function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? fallback;
  } catch {
    return fallback; // storage is off, or holds something that is not ours
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, value);
  } catch {
    // Full or switched off: the page works, it only forgets.
  }
}

export function loadConversation() {
  const turns = read(CONVERSATION, []);
  return Array.isArray(turns) ? turns.filter((t) => typeof t?.role === "string") : [];
}

export function saveConversation(turns) {
  write(localStorage, CONVERSATION, JSON.stringify(turns));
}

export function loadSettings() {
  return { ...DEFAULTS, ...read(SETTINGS, {}) };
}

export function saveSettings(settings) {
  write(localStorage, SETTINGS, JSON.stringify(settings));
}

export function loadTheme() {
  return read(THEME, "auto");
}

export function saveTheme(theme) {
  write(localStorage, THEME, JSON.stringify(theme));
}

export function loadKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function saveKey(key) {
  write(sessionStorage, KEY, key);
}
