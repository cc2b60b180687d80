"""The user turn of a read, byte for byte as vLLM's next-token models write it."""

from decision_proxy.questions import Kind, Option, Question

HOW_TO_REPLY = {
    Kind.CHOICE: "Answer with the letter of one option only.",
    Kind.NOUL: "Answer with yes or no only.",
    Kind.SCORE: "Answer with the number of one level only.",
}


def user_turn(state: str, question: Question) -> str:
    return f"{state}\n\n{question_text(question)}"


def question_text(question: Question) -> str:
    lines = [f"Question: {question.instructions}"] if question.instructions else []
    lines += [
        _option_line(question.kind, label, option)
        for label, option in zip(question.labels, question.options, strict=True)
    ]
    lines.append(HOW_TO_REPLY[question.kind])
    return "\n".join(lines)


def _option_line(kind: Kind, label: str, option: Option) -> str:
    if kind is Kind.NOUL:
        return f"{label}: {option.description}" if option.description else label
    if option.description:
        return f"{label}: {option.name} - {option.description}"
    return f"{label}: {option.name}"
