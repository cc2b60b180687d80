"""Rewrites the settings table and the bench table of the README: python -m tests.readme_tables."""

import re

from tests.test_documents import README, ROOT, settings_table


def main() -> None:
    bench = (ROOT / "bench" / "results" / "splice.md").read_text(encoding="utf-8")
    rows = [line for line in bench.splitlines() if line.startswith("|")]
    text = re.sub(
        r"<!-- settings -->\n|(?:\| `--.*\n)+",
        lambda _: "\n".join(settings_table()) + "\n",
        README,
        count=1,
    )
    text = re.sub(
        r"<!-- bench -->\n|\| tokenizer \|.*\n(?:\|.*\n)+",
        lambda _: "\n".join(rows) + "\n",
        text,
        count=1,
    )
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
