"""The facts that the model knows: nothing but tables."""

from __future__ import annotations

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "England": "London", "Ireland": "Dublin", "Austria": "Vienna",
    "Switzerland": "Bern", "Belgium": "Brussels", "Poland": "Warsaw", "Hungary": "Budapest",
    "Greece": "Athens", "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv",
    "Sweden": "Stockholm", "Norway": "Oslo", "Denmark": "Copenhagen", "Finland": "Helsinki",
    "Iceland": "Reykjavik", "Romania": "Bucharest", "Bulgaria": "Sofia", "Croatia": "Zagreb",
    "Serbia": "Belgrade", "Estonia": "Tallinn", "Latvia": "Riga", "Lithuania": "Vilnius",
    "Egypt": "Cairo", "Morocco": "Rabat", "Kenya": "Nairobi", "Ghana": "Accra",
    "Nigeria": "Abuja", "Ethiopia": "Addis Ababa", "Senegal": "Dakar", "Tunisia": "Tunis",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Thailand": "Bangkok",
    "Vietnam": "Hanoi", "Indonesia": "Jakarta", "Mongolia": "Ulaanbaatar", "Nepal": "Kathmandu",
    "Iran": "Tehran", "Iraq": "Baghdad", "Canada": "Ottawa", "Mexico": "Mexico City",
    "Cuba": "Havana", "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Chile": "Santiago",
    "Peru": "Lima", "Colombia": "Bogota", "Ecuador": "Quito", "Australia": "Canberra",
    "New Zealand": "Wellington", "South Korea": "Seoul",
}  # fmt: skip

SYMBOLS = {
    "hydrogen": "H", "helium": "He", "lithium": "Li", "carbon": "C", "nitrogen": "N",
    "oxygen": "O", "fluorine": "F", "neon": "Ne", "sodium": "Na", "magnesium": "Mg",
    "aluminium": "Al", "silicon": "Si", "phosphorus": "P", "sulfur": "S", "chlorine": "Cl",
    "argon": "Ar", "potassium": "K", "calcium": "Ca", "titanium": "Ti", "chromium": "Cr",
    "iron": "Fe", "cobalt": "Co", "nickel": "Ni", "copper": "Cu", "zinc": "Zn",
    "silver": "Ag", "tin": "Sn", "iodine": "I", "tungsten": "W", "platinum": "Pt",
    "gold": "Au", "mercury": "Hg", "lead": "Pb", "uranium": "U",
}  # fmt: skip

PLANETS = {
    "largest planet": "Jupiter", "smallest planet": "Mercury",
    "hottest planet": "Venus", "coldest planet": "Uranus",
    "red planet": "Mars", "blue planet": "Earth",
    "planet with the brightest rings": "Saturn", "planet closest to the sun": "Mercury",
    "planet farthest from the sun": "Neptune", "planet that we live on": "Earth",
    "windiest planet": "Neptune", "planet that lies on its side": "Uranus",
    "planet with the great red spot": "Jupiter", "second planet from the sun": "Venus",
    "third planet from the sun": "Earth", "fourth planet from the sun": "Mars",
    "fifth planet from the sun": "Jupiter", "sixth planet from the sun": "Saturn",
}  # fmt: skip

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
    "tenth", "eleventh", "twelfth",
)  # fmt: skip

COLOURS = {
    "banana": "yellow", "tomato": "red", "lemon": "yellow", "cucumber": "green",
    "strawberry": "red", "carrot": "orange", "frog": "green", "flamingo": "pink",
    "snowman": "white", "raven": "black", "polar bear": "white", "chocolate bar": "brown",
    "pumpkin": "orange", "plum": "purple", "cherry": "red", "clear sky": "blue",
    "lime": "green", "sunflower": "yellow", "elephant": "grey", "blueberry": "blue",
}  # fmt: skip
MIXTURES = {
    ("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "blue"): "purple",
    ("red", "white"): "pink", ("black", "white"): "grey", ("blue", "white"): "light blue",
}  # fmt: skip

OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("left", "right"), ("day", "night"),
    ("fast", "slow"), ("old", "new"), ("happy", "sad"), ("light", "dark"), ("open", "closed"),
    ("early", "late"), ("high", "low"), ("rich", "poor"), ("strong", "weak"), ("wet", "dry"),
    ("full", "empty"), ("hard", "soft"), ("loud", "quiet"), ("clean", "dirty"), ("thick", "thin"),
    ("wide", "narrow"), ("long", "short"), ("deep", "shallow"),
    ("good", "bad"), ("true", "false"), ("start", "end"), ("push", "pull"), ("buy", "sell"),
    ("win", "lose"), ("give", "take"), ("love", "hate"), ("inside", "outside"),
    ("above", "below"), ("front", "back"), ("always", "never"), ("more", "less"),
    ("sweet", "sour"), ("sharp", "blunt"), ("brave", "afraid"),
)  # fmt: skip

LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese")
GREETINGS = {
    "hello": ("Hallo", "Bonjour", "Hola", "Ciao", "Olá"),
    "good morning": ("Guten Morgen", "Bonjour", "Buenos días", "Buongiorno", "Bom dia"),
    "good evening": ("Guten Abend", "Bonsoir", "Buenas tardes", "Buonasera", "Boa tarde"),
    "good night": ("Gute Nacht", "Bonne nuit", "Buenas noches", "Buonanotte", "Boa noite"),
    "goodbye": ("Auf Wiedersehen", "Au revoir", "Adiós", "Arrivederci", "Adeus"),
    "thank you": ("Danke", "Merci", "Gracias", "Grazie", "Obrigado"),
    "please": ("Bitte", "S'il vous plaît", "Por favor", "Per favore", "Por favor"),
    "welcome": ("Willkommen", "Bienvenue", "Bienvenido", "Benvenuto", "Bem-vindo"),
    "yes": ("Ja", "Oui", "Sí", "Sì", "Sim"),
    "no": ("Nein", "Non", "No", "No", "Não"),
}  # fmt: skip

# Short words: for spelling, reversing, sorting, copying, remembering.
WORDS = (
    "apple", "bird", "book", "bread", "bridge", "candle", "castle", "chair", "cloud", "coin",
    "crown", "desk", "dog", "door", "dream", "drum", "eagle", "field", "fish", "flag",
    "flower", "forest", "garden", "ghost", "glass", "grape", "hammer", "hat", "horse", "house",
    "island", "jacket", "kettle", "key", "king", "kite", "ladder", "lamp", "lantern", "leaf",
    "lion", "map", "mirror", "moon", "mouse", "needle", "nest", "ocean", "orange", "owl",
    "paper", "pencil", "pepper", "piano", "pillow", "queen", "rabbit", "river", "rocket", "rose",
    "sand", "ship", "silk", "snow", "spoon", "stone", "storm", "sugar", "table", "tiger",
    "tower", "train", "tree", "tulip", "turtle", "umbrella", "valley", "violin", "wagon", "water",
    "whale", "wheel", "window", "winter", "wolf", "wood", "yarn", "zebra", "cat", "sun",
)  # fmt: skip

NAMES = (
    "Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack",
    "Karl", "Laura", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor",
    "Walter", "Yara", "Zoe", "Alice", "Bob", "Clara", "Daniel", "Eva", "Frank", "Hannah",
    "Ivan", "Julia", "Kim", "Leo", "Maria", "Nina", "Oscar", "Peter", "Ruth", "Simon",
)  # fmt: skip
