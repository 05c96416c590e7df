"""The prompts of SmolLM2's world: chats short and long, some of several turns."""

QUESTIONS = [
    "What is 17 + 25? Answer with the number alone.",
    "Write a short poem about the sea.",
    "Is Paris in France? Answer yes or no.",
    "List three uses of a paperclip.",
    "Write a Python function that reverses a string.",
    "Who was Ada Lovelace, and what did she do with Charles Babbage's Analytical Engine?",
    "Translate 'good morning' into French and German.",
    "Summarise the plot of Hamlet in two sentences.",
    "A train travels 60 km in 45 minutes. What is its average speed? Think step by step.",
    "Give me a recipe for pancakes.",
    "Name one colour. Use a single word.",
    "Name five countries in Africa and their capitals.",
    "Using the numbers 3, 7, 25 and 46 once each, make an expression that equals 81.",
    "Write a SQL query that counts users by country.",
]
TURNS = [
    ["Hello, I want to plan a trip to Norway.", "Sure! When do you want to travel?", "In June."],
    ["What is 3 * 4?", "12", "And half of that?"],
]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


CHATS = [[_user(text)] for text in QUESTIONS] + [
    [_user(first), {"role": "assistant", "content": answer}, _user(then)]
    for first, answer, then in TURNS
]
