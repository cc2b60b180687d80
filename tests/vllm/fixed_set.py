"""The fixed set of the reference: 28 requests, 317 answers.

20 support tickets, half of them with instructions; 5 and 64 questions on states of about 200 and
4,000 tokens and on a long one; a JSON state; a state that ends in white space.
"""

from collections.abc import Iterator
from typing import Any

Request = dict[str, Any]

PRODUCTS = ("espresso machine", "standing desk", "noise-cancelling headset", "e-reader")
TROUBLES = (
    "arrived with a cracked lid and smells of burnt plastic",
    "was charged twice on my card ending 4821",
    "still shows 'in transit' after 19 days",
    "worked for two weeks, and now it won't switch on",
    "is fine, but how do I change the delivery address?",
)
ENDINGS = ("Please help!", "Ich möchte mein Geld zurück.", "返品したいです。", "Thanks, Zoë 🙂")


def ticket(number: int) -> str:
    product, trouble = PRODUCTS[number % 4], TROUBLES[number % 5]
    return f"Ticket #{1000 + 7 * number}\nMy {product} {trouble}. {ENDINGS[number % 4]}"


def five_questions() -> dict[str, Any]:
    return {
        "department": {
            "type": "choice",
            "instructions": "Which department should handle this?",
            "criteria": {"billing": "payments and refunds", "shipping": None, "repairs": "faults"},
        },
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "refund": {
            "type": "noul",
            "instructions": "Does the customer want a refund?",
            "criteria": {"true": "asks for money back", "false": "anything else"},
        },
        "mood": {
            "type": "score",
            "instructions": "How does the customer feel?",
            "criteria": ["furious", "annoyed", "neutral", "pleased", "delighted"],
        },
        "language": {
            "type": "choice",
            "criteria": {"English": None, "German": None, "日本語": None},
        },
    }


def many_questions(count: int = 64) -> dict[str, Any]:
    kinds = list(five_questions().values())
    return {
        f"question {i}": {**kinds[i % 5], "instructions": f"In view of point {i}: which one?"}
        for i in range(count)
    }


def long_state(tokens: int) -> str:
    """About `tokens` tokens of varied text."""
    sentences = [
        f"{i}. On day {i % 28 + 1} the {PRODUCTS[i % 4]} of customer {i * 37 % 1009} "
        f"{TROUBLES[i % 5]}."
        for i in range(tokens // 34 + 1)
    ]
    return "\n".join(sentences)


def requests(longest: int) -> Iterator[tuple[str, Request]]:
    """(name, body for /v1/systemone) pairs; `longest`: tokens of the long state."""
    for number in range(20):
        body: Request = {"state": ticket(number), "questions": five_questions()}
        if number % 2:
            body["instructions"] = "You route support tickets of a web shop. Be strict."
        yield f"ticket {number}", body
    for tokens in (200, 4000, longest):
        state = long_state(tokens)
        yield f"5 on {tokens}", {"state": state, "questions": five_questions()}
        yield f"64 on {tokens}", {"state": state, "questions": many_questions()}
    record = {"id": 17, "items": [{"sku": "Ä-1", "price": 12.5}, None], "note": "ünïcode\n"}
    yield "JSON state", {"state": record, "questions": five_questions()}
    yield "white space", {"state": ticket(3) + " \n\n  ", "questions": five_questions()}
