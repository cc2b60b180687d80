"""The example decision of the demo: three questions about a support ticket."""

import json
import shlex
from typing import Any

MODEL = "smollm2-135m-instruct"

TICKET = """\
Ticket 48213, opened 07:42 by Marta Nowak (plan: Business, customer since 2021)
Subject: charged twice, and payroll runs today

Hello,
this is the second time this quarter that our card was charged twice for the same invoice
(INV-20417, 1,240.00 EUR each). The bank has blocked the card because of it, and our payroll
runs through the same account at noon. I wrote on Friday and got an automatic reply, nothing else.
Please refund the duplicate and confirm in writing before noon, or we will have to cancel
and move to another provider. I am honestly tired of this.

Marta Nowak, Head of Finance, Lindqvist & Partner"""

QUESTIONS: dict[str, dict[str, Any]] = {
    "department": {
        "type": "choice",
        "instructions": "Which department should handle this ticket?",
        "criteria": {
            "billing": "Invoices, charges, refunds and payment methods.",
            "technical": "Errors, outages and how to use the product.",
            "sales": "New contracts, upgrades and prices.",
            "account": "Logins, users and permissions.",
        },
    },
    "urgent": {
        "type": "noul",
        "instructions": "Does this ticket need an answer within hours?",
        "criteria": {
            "true": "A deadline today, or money or work at a standstill.",
            "false": "It can wait until tomorrow.",
        },
    },
    "mood": {
        "type": "score",
        "instructions": "How does the customer feel?",
        "criteria": ["furious", "annoyed", "neutral", "content", "delighted"],
    },
}

REQUEST: dict[str, Any] = {"model": MODEL, "state": TICKET, "questions": QUESTIONS}

SHORT_REQUEST: dict[str, Any] = {
    "model": MODEL,
    "state": "My card was charged twice for one invoice, and payroll runs at noon.",
    "questions": {
        "urgent": {"type": "noul", "instructions": "Does this need an answer within hours?"},
        "department": {
            "type": "choice",
            "instructions": "Which department should handle it?",
            "criteria": {"billing": None, "technical": None, "sales": None},
        },
    },
}


def curl(url: str) -> str:
    """A command line to paste."""
    body = shlex.quote(json.dumps(SHORT_REQUEST))
    return f"curl {url}/v1/systemone -H 'content-type: application/json' -d {body}"
