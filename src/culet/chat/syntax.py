"""The control tokens of Gemma 4's turns, thoughts and tool calls, by spelling.

Knows the spellings only; which ids they have is the tokenizer's business.
"""

from __future__ import annotations

from typing import Final

TURN_OPEN: Final = "<|turn>"
TURN_CLOSE: Final = "<turn|>"
CHANNEL_OPEN: Final = "<|channel>"
CHANNEL_CLOSE: Final = "<channel|>"
CALL_OPEN: Final = "<|tool_call>"
CALL_CLOSE: Final = "<tool_call|>"
RESPONSE_OPEN: Final = "<|tool_response>"
RESPONSE_CLOSE: Final = "<tool_response|>"
QUOTE: Final = '<|"|>'
THINK: Final = "<|think|>"
END_OF_SEQUENCE: Final = "<eos>"

# The word that names the thinking channel; it stands between the opener and a newline.
THOUGHT_LABEL: Final = "thought"
