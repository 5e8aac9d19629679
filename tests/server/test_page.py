"""The chat page in a real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from culet.chat.syntax import CALL_CLOSE, CALL_OPEN, CHANNEL_CLOSE, CHANNEL_OPEN, QUOTE
from culet.server.limits import Access
from culet.server.state import ServerState
from support.live_server import serving, state_for

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    # Playwright leaves its event loop's sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
MARKDOWN = f"""# A heading

Some **bold**, *slanted* and `code` with {EVIL} and [a link](https://example.org) \
and [no link](javascript:window.hacked=1).

1. one
2. two
   - inner

| a | b |
|---|---|
| 1 | **2** |

```python
def f(x):
    return "<b>" + x
```

> quoted

Done."""
CALL = f"{CALL_OPEN}call:weather{{city:{QUOTE}Köln{QUOTE}}}{CALL_CLOSE}"
TOOLS = '[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]'
LONG = "word " * 400


def script(prompt: str, choice: int) -> str:
    thought = f"{CHANNEL_OPEN}thought\nLet me think.\n{CHANNEL_CLOSE}"
    head = thought if "<|think|>" in prompt else ""
    last = prompt.rpartition("<|turn>user\n")[2]
    if "markdown" in last:
        return head + MARKDOWN
    if "long" in last:
        return head + LONG
    if "<|tool>" in prompt and "tool_response" not in last:
        return head + CALL
    return head + "Hello there."


def shot(page: Any, name: str) -> None:
    """Leave a picture where CULET_SCREENSHOTS says, for a person to look at."""
    folder = os.environ.get("CULET_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(state_for(script, step_seconds=0.004)) as address:
        yield address


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None
    )
    opened.goto(url)
    yield opened
    context.close()
    # A refusal is shown in the page; that the browser notes it too is no fault.
    assert not [p for p in problems if not p.startswith("Failed to load resource")]


def ask(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")


def wait_for_end(page: Any) -> None:
    page.wait_for_selector(".turn.assistant .foot", timeout=20_000)
    page.wait_for_selector("#send:not([hidden])")


def test_markdown_is_shown_and_nothing_is_run(page: Any) -> None:
    shot(page, "empty")
    ask(page, "markdown please")
    wait_for_end(page)
    body = page.locator(".turn.assistant .body")
    assert body.locator("h2").inner_text() == "A heading"
    assert body.locator("strong").first.inner_text() == "bold"
    assert body.locator("ol > li").count() == 2 and body.locator("ol ul li").count() == 1
    assert body.locator("td strong").inner_text() == "2"
    assert body.locator(".code pre").inner_text() == 'def f(x):\n    return "<b>" + x'
    assert "<img" in body.inner_text() and "<script>" in body.inner_text()
    assert body.locator("img, script").count() == 0
    assert [a.get_attribute("href") for a in body.locator("a").all()] == ["https://example.org"]
    assert page.evaluate("window.hacked") is None
    assert "tokens/s" in page.locator(".foot").inner_text()
    assert "of 4096 tokens" in page.locator("#context").inner_text()
    shot(page, "wide")


def test_the_copy_button_copies(browser: Any, url: str) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(url)
    ask(page, "markdown please")
    wait_for_end(page)
    page.click(".code button")
    sync_api.expect(page.locator(".code button")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == 'def f(x):\n    return "<b>" + x'
    context.close()


def test_thoughts_are_folded_and_settings_reach_the_model(page: Any) -> None:
    page.click("#open-settings")
    page.fill("#setting-system", "Be a pirate.")
    page.fill("#setting-temperature", "0.3")
    page.fill("#setting-seed", "7")
    page.check("#setting-thinking")
    shot(page, "settings")
    page.click("#settings button")
    with page.expect_request("**/v1/chat/completions") as caught:
        ask(page, "hi")
    body = caught.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be a pirate."}
    assert (body["temperature"], body["seed"], body["reasoning_effort"]) == (0.3, 7, "high")
    wait_for_end(page)
    assert not page.locator(".thought").is_visible()
    page.click("summary")
    assert page.locator(".thought").inner_text() == "Let me think."
    assert page.locator(".turn.assistant .body").inner_text() == "Hello there."


def test_stop_and_retry(page: Any) -> None:
    ask(page, "long one")
    page.wait_for_selector("#stop:not([hidden])")
    sync_api.expect(page.locator(".assistant .body")).to_have_text(re.compile("(word ){5}"))
    page.keyboard.press("Escape")
    wait_for_end(page)
    assert "stopped" in page.locator(".foot").inner_text()
    stopped = page.locator(".turn.assistant .body").inner_text()
    assert 20 < len(stopped) < len(LONG)
    page.click(".foot button")
    wait_for_end(page)
    assert page.locator(".turn.assistant").count() == 1
    assert len(page.locator(".turn.assistant .body").inner_text()) > len(stopped)


def test_the_conversation_stays(page: Any, url: str) -> None:
    ask(page, "hi")
    wait_for_end(page)
    page.reload()
    assert page.locator(".turn").count() == 2
    page.click("#new")
    assert page.locator(".turn").count() == 0
    page.reload()
    assert page.locator(".turn").count() == 0


def test_tool_calls_are_shown_and_answered(page: Any) -> None:
    page.click("#open-settings")
    page.fill("#setting-tools", "not json")
    page.click("#settings button")
    assert "not JSON" in page.locator("#tools-error").inner_text()
    page.fill("#setting-tools", TOOLS)
    page.click("#settings button")
    ask(page, "weather?")
    wait_for_end(page)
    assert "Calls weather" in page.locator(".call").inner_text()
    assert '"city": "Köln"' in page.locator(".call").inner_text()
    shot(page, "call")
    page.fill(".call textarea", "sunny")
    page.click("text=Send results")
    page.wait_for_selector("text=Hello there.")
    assert "Result of weather" in page.locator(".turn.tool").inner_text()


def test_errors_are_shown(page: Any) -> None:
    ask(page, "x " * 5000)
    page.wait_for_selector(".error:not(:empty)")
    assert "context holds 4096" in page.locator(".turn .error").inner_text()


def test_phone_and_dark(browser: Any, url: str) -> None:
    context = browser.new_context(
        viewport={"width": 375, "height": 700}, color_scheme="dark", has_touch=True
    )
    page = context.new_page()
    page.goto(url)
    ask(page, "markdown please")
    wait_for_end(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(18, 23, 22)"
    shot(page, "phone-dark")
    page.click("#open-settings")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    shot(page, "phone-settings")
    context.close()
    wide = browser.new_context(viewport={"width": 1100, "height": 800})
    page = wide.new_page()
    page.goto(url)
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    ask(page, "markdown please")
    wait_for_end(page)
    shot(page, "dark")
    wide.close()


def test_the_keyboard_reaches_everything(page: Any) -> None:
    ask(page, "markdown please")
    wait_for_end(page)
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "new", "open-settings", "message", "send", "BUTTON", "A", "PRE"} <= reached
    names = page.evaluate(
        "[...document.querySelectorAll('button, textarea, input')].filter(e =>"
        " !(e.textContent.trim() || e.labels?.length || e.ariaLabel)).length"
    )
    assert names == 0
    assert page.locator("[role=status]").count() == 1


def test_a_key_is_asked_for(browser: Any) -> None:
    state = state_for(script)
    locked = ServerState(state.model, access=Access(keys=("secret",)))
    with serving(locked) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("text=an API key is needed")
        ask(page, "hi")
        page.wait_for_selector("#setting-key:visible")
        page.fill("#setting-key", "secret")
        page.click("#settings button")
        page.wait_for_selector("text=tiny")
        page.click(".foot button")
        page.wait_for_selector("text=Hello there.")
        context.close()
