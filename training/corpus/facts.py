"""Exchanges over the fixed tables. Every fact is trained; of its phrasings some are held out."""

from __future__ import annotations

from random import Random

from training.corpus.exchange import Exchange, capitalised, framed
from training.corpus.split import Phrasings, Split, phrase
from training.corpus.tables import (
    CAPITALS,
    COLOURS,
    GREETINGS,
    LANGUAGES,
    MIXTURES,
    MONTH_DAYS,
    MONTHS,
    OPPOSITES,
    ORDINALS,
    PLANETS,
    SYMBOLS,
)

_CAPITAL = Phrasings(
    (
        "What is the capital of {key}?", "What's the capital of {key}?",
        "Name the capital of {key}.",
        "Tell me the capital of {key}.", "Which city is the capital of {key}?",
        "Do you know the capital of {key}?", "Capital of {key}?", "{key}: what is its capital?",
        "What is {key}'s capital?", "What city is the capital of {key}?",
        "What is the name of the capital of {key}?", "What is the capital city of {key}?",
        "Give me the capital of {key}.", "I want to know the capital of {key}.",
        "Can you name the capital of {key}?",
    ),
    (
        "I need the capital of {key}.", "Which city do they call the capital of {key}?",
        "Where is the government of {key}?", "{key} has which capital?",
        "Say the capital of {key}.", "What would be the capital of {key}?",
        "Remind me of the capital of {key}.", "The capital of {key} is which city?",
        "Which capital does {key} have?", "Write the capital of {key}.",
    ),
)  # fmt: skip
_CAPITAL_OF = Phrasings(
    (
        "{value} is the capital of which country?", "Which country has the capital {value}?",
        "Of which country is {value} the capital?", "Which country's capital is {value}?",
        "What country has {value} as its capital?",
    ),
    (
        "{value} is the capital of what country?", "Name the country with the capital {value}.",
        "To which country does the capital {value} belong?",
        "The city {value} is the capital of which country?",
        "Which country do you think of with the capital {value}?",
    ),
)  # fmt: skip
_SYMBOL = Phrasings(
    (
        "What is the chemical symbol of {key}?", "What is the symbol of {key}?",
        "What's the symbol for {key}?", "Name the chemical symbol of {key}.",
        "What is the chemical symbol for {key}?", "Give me the symbol of {key}.",
        "Chemical symbol of {key}?", "Which symbol does {key} have?", "Symbol for {key}?",
        "Which chemical symbol stands for {key}?", "What is {key}'s chemical symbol?",
        "How is {key} written in chemistry?", "Tell me the symbol of {key}.",
        "What symbol does {key} have?", "Can you give me the symbol for {key}?",
    ),
    (
        "What stands for {key} in chemistry?", "Which letters stand for {key}?",
        "Which chemical symbol is used for {key}?", "Which chemical symbol belongs to {key}?",
        "What chemical symbol does {key} have?", "Write the chemical symbol of {key}.",
        "Do you know the symbol of {key}?", "I need the symbol of {key}.",
        "Say the symbol for {key}.", "How do chemists write {key}?",
        "Which chemical letters mean {key}?", "{key} has which symbol?",
        "Remind me of the symbol of {key}.", "What letters are used for {key}?",
    ),
    (
        "{key}: which symbol stands for it?", "Say which symbol stands for {key}.",
        "In chemistry, which letters stand for {key}?",
        "Do you know what stands for {key} in chemistry?",
    ),
)  # fmt: skip
_SYMBOL_OF = Phrasings(
    (
        "Which element has the symbol {value}?", "What element is {value}?",
        "{value} is the symbol of which element?", "What does the symbol {value} stand for?",
        "Which chemical element has the symbol {value}?",
    ),
    (
        "Name the element with the symbol {value}.",
        "To which element does the symbol {value} belong?", "{value} is which element?",
        "Which element do chemists write as {value}?", "The symbol {value} means which element?",
        "What is the element {value}?",
    ),
)  # fmt: skip
_PLANET = Phrasings(
    (
        "Which planet is the {key}?", "What is the {key}?", "What's the {key}?", "Name the {key}.",
        "Tell me which planet is the {key}.", "Do you know the {key}?", "Which is the {key}?",
        "What is the name of the {key}?", "What planet is the {key}?", "Can you name the {key}?",
        "Give me the name of the {key}.", "What do we call the {key}?",
    ),
    (
        "I need the name of the {key}.", "Which planet do we call the {key}?",
        "The {key} has what name?", "Of all planets, which is the {key}?",
        "Say the name of the {key}.", "Remind me which planet is the {key}.",
    ),
)  # fmt: skip
_MONTH_AT = Phrasings(
    (
        "What is the {key} month?", "Which month is the {key} of the year?",
        "Name the {key} month.",
        "What is the {key} month of the year?", "Which is the {key} month?",
        "What's the {key} month?", "Tell me the {key} month.",
        "Which month comes {key} in the year?",
        "Can you name the {key} month?", "What month is the {key} one?",
    ),
    (
        "Which one of the months is the {key}?", "Of the twelve months, which one is the {key}?",
        "Say the {key} month.", "The {key} month has what name?",
        "What do we call the {key} month?", "Remind me of the {key} month.",
        "I need the {key} month.", "In a year, what is the {key} month?",
        "Which month do we have {key}?", "Is there a name for the {key} month?",
    ),
)  # fmt: skip
_MONTH_DAYS = Phrasings(
    (
        "How many days does {key} have?", "How many days are in {key}?", "How long is {key}?",
        "Tell me how many days {key} has.", "How many days are there in {key}?",
        "Number of days in {key}?", "What is the number of days in {key}?",
        "{key} has how many days?",
        "How many days has {key}?", "How many days long is {key}?",
    ),
    (
        "In {key} there are how many days?", "The month of {key} has how many days?",
        "Count the days of {key}.", "How many days do we have in {key}?",
        "Give me the days of {key}.", "What number of days has {key}?",
    ),
)  # fmt: skip
_MONTH_NEXT = Phrasings(
    (
        "Which month comes after {key}?", "What month comes after {key}?",
        "What is the month after {key}?", "Which month follows {key}?", "What month follows {key}?",
        "What comes after {key}?", "Name the month after {key}.", "After {key} comes which month?",
        "Which is the month after {key}?", "Tell me which month comes after {key}.",
    ),
    (
        "The month after {key} is which one?", "When {key} is over, which month is it?",
        "Say the month after {key}.", "Which month do we have after {key}?",
        "What do we call the month after {key}?", "Give me the month that follows {key}.",
    ),
)  # fmt: skip
_MONTH_BEFORE = Phrasings(
    (
        "Which month comes before {key}?", "What month comes before {key}?",
        "What is the month before {key}?", "Which month is just before {key}?",
        "What month is before {key}?", "What comes before {key}?", "Name the month before {key}.",
        "Before {key} comes which month?", "Which is the month before {key}?",
        "Tell me which month comes before {key}.",
    ),
    (
        "The month before {key} is which one?", "Say the month before {key}.",
        "Which month do we have before {key}?", "What do we call the month before {key}?",
        "Give me the month that comes before {key}.", "Which month ends when {key} begins?",
    ),
)  # fmt: skip
_COLOUR = Phrasings(
    (
        "What colour is a {key}?", "Which colour does a {key} have?",
        "What is the colour of a {key}?",
        "Tell me the colour of a {key}.", "What colour does a {key} have?", "Colour of a {key}?",
        "Which colour is a {key}?", "Name the colour of a {key}.", "A {key} has what colour?",
        "A {key} has which colour?",
    ),
    (
        "Say the colour of a {key}.", "What is a {key}'s colour?",
        "Which colour would you paint a {key}?", "I need the colour of a {key}.",
        "Remind me what colour a {key} is.", "In which colour does a {key} come?",
    ),
)  # fmt: skip
_MIXTURE = Phrasings(
    (
        "What do {key} make?", "What colour do {key} make?", "Which colour do you get from {key}?",
        "What happens if I mix {key}?", "What do you get if you mix {key}?", "Mix {key}.",
        "Which colour is made of {key}?", "What colour do I get from {key}?",
        "If I mix {key}, what do I get?", "What colour is a mix of {key}?",
    ),
    (
        "{key} make which colour?", "Say what {key} make.", "I mix {key}: what colour is it?",
        "Which colour comes of {key}?", "Tell me the mix of {key}.",
        "What colour is made of {key}?", "Put {key} together: what colour?",
    ),
    (
        "A mix of {key} is which colour?", "Say the colour of a mix of {key}.",
        "I have a mix of {key}: what is its colour?", "What is a mix of {key}?",
        "Which colour does a mix of {key} have?",
    ),
)  # fmt: skip
_OPPOSITE = Phrasings(
    (
        "What is the opposite of {key}?", "What's the opposite of {key}?", "Opposite of {key}?",
        "Name the opposite of {key}.", "Which word is the opposite of {key}?",
        "Tell me the opposite of {key}.", "Give me the opposite of {key}.",
        "What word means the opposite of {key}?", "The opposite of {key} is what?",
        "Do you know the opposite of {key}?",
    ),
    (
        "Say the opposite of {key}.", "I need the opposite of {key}.",
        "What is not {key} but the opposite?", "Which is the opposite of {key}?",
        "Write the opposite of {key}.", "Remind me of the opposite of {key}.",
        "Is there an opposite of {key}?",
    ),
)  # fmt: skip
_GREETING = Phrasings(
    (
        'How do you say "{key}" in {language}?', 'Say "{key}" in {language}.',
        'Translate "{key}" into {language}.', 'What is "{key}" in {language}?',
        'What is the {language} for "{key}"?', 'How do I say "{key}" in {language}?',
        "Say {key} in {language}.", "What is {key} in {language}?",
        "How do you say {key} in {language}?", 'Please translate "{key}" to {language}.',
        "Translate {key} into {language}.", 'What do people say for "{key}" in {language}?',
        "{key} in {language}?", 'What does "{key}" mean in {language}?',
        'In {language}, how do you say "{key}"?',
    ),
    (
        'I want to say "{key}" in {language}.', 'Write "{key}" in {language}.',
        '"{key}" in {language}, please.', 'What are the words for "{key}" in {language}?',
        'Give me "{key}" in {language}.', 'How would you say "{key}" in {language}?',
        'In {language}, what is "{key}"?',
    ),
)  # fmt: skip


def _exchange(
    rng: Random, split: Split, category: str, texts: Phrasings, sentence: str, short: str,
    **fields: str,
) -> Exchange:  # fmt: skip
    question = capitalised(phrase(rng, texts, split).format(**fields))
    thought = f"The question is simple. The answer is {short}."
    return Exchange(category, framed(rng, question), sentence, short, thought)


def capital(rng: Random, split: Split) -> Exchange:
    country, city = rng.choice(list(CAPITALS.items()))
    if rng.random() < 0.25:
        sentence = f"{city} is the capital of {country}."
        return _exchange(rng, split, "capitals", _CAPITAL_OF, sentence, country, value=city)
    sentence = f"The capital of {country} is {city}."
    return _exchange(rng, split, "capitals", _CAPITAL, sentence, city, key=country)


def symbol(rng: Random, split: Split) -> Exchange:
    element, letters = rng.choice(list(SYMBOLS.items()))
    if rng.random() < 0.25:
        sentence = f"{letters} is the symbol of {element}."
        return _exchange(rng, split, "symbols", _SYMBOL_OF, sentence, element, value=letters)
    sentence = f"The symbol of {element} is {letters}."
    return _exchange(rng, split, "symbols", _SYMBOL, sentence, letters, key=element)


def planet(rng: Random, split: Split) -> Exchange:
    what, name = rng.choice(list(PLANETS.items()))
    return _exchange(rng, split, "planets", _PLANET, f"The {what} is {name}.", name, key=what)


def month(rng: Random, split: Split) -> Exchange:
    index = rng.randrange(12)
    name, after, before = MONTHS[index], MONTHS[(index + 1) % 12], MONTHS[index - 1]
    days, ordinal = str(MONTH_DAYS[index]), ORDINALS[index]
    texts, sentence, short, key = rng.choice(
        (
            (_MONTH_AT, f"The {ordinal} month is {name}.", name, ordinal),
            (_MONTH_DAYS, f"{name} has {days} days.", days, name),
            (_MONTH_NEXT, f"After {name} comes {after}.", after, name),
            (_MONTH_BEFORE, f"Before {name} comes {before}.", before, name),
        )
    )
    return _exchange(rng, split, "months", texts, sentence, short, key=key)


def colour(rng: Random, split: Split) -> Exchange:
    if rng.random() < 0.3:
        (one, two), mixed = rng.choice(list(MIXTURES.items()))
        if rng.random() < 0.5:
            one, two = two, one
        sentence = f"{capitalised(one)} and {two} make {mixed}."
        both = f"{one} and {two}"
        return _exchange(rng, split, "colours", _MIXTURE, sentence, mixed, key=both)
    thing, name = rng.choice(list(COLOURS.items()))
    return _exchange(rng, split, "colours", _COLOUR, f"A {thing} is {name}.", name, key=thing)


def opposite(rng: Random, split: Split) -> Exchange:
    one, two = rng.choice(OPPOSITES)
    if rng.random() < 0.5:
        one, two = two, one
    sentence = f"The opposite of {one} is {two}."
    return _exchange(rng, split, "opposites", _OPPOSITE, sentence, two, key=one)


def greeting(rng: Random, split: Split) -> Exchange:
    english, others = rng.choice(list(GREETINGS.items()))
    column = rng.randrange(len(LANGUAGES))
    language, said = LANGUAGES[column], others[column]
    sentence = f"{capitalised(english)} in {language} is {said}."
    return _exchange(
        rng, split, "greetings", _GREETING, sentence, said, key=english, language=language
    )
