import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from decision_proxy.errors import RequestError
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.prompt.splice import Splicer
from decision_proxy.prompt.tokenizer import Tokenizer, TokenizerError
from decision_proxy.questions import Decision
from decision_proxy.reads.next_token import NextToken
from decision_proxy.settings import Limits, Prompt
from decision_proxy.wire.decisions import DecisionsRequest
from decision_proxy.wire.systemone import SystemOneRequest
from tests.prompt.conftest import real_tokenizer
from tests.prompt.counting import counted
from tests.prompt.small import added, small_file, small_tokenizer
from tests.servers import tokenizer_folder

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def qwen3() -> Prompts:
    return Prompts(Tokenizer.load(str(tokenizer_folder("qwen3"))), Prompt())


def decision(wire: str, body: dict[str, Any]) -> Decision:
    limits = Limits(questions=64)
    if wire == "systemone":
        return SystemOneRequest.parse(body, dialect="vllm", limits=limits).decision("d")
    return DecisionsRequest.parse(body, limits=limits).decision("d")


@pytest.mark.parametrize("wire", ["systemone", "decisions"])
def test_prompts_have_the_ids_that_vllm_sends(qwen3: Prompts, wire: str) -> None:
    reads = NextToken(qwen3, qwen3.labels(), max_model_len=32768)
    for case in json.loads((GOLDEN / f"{wire}.json").read_text(encoding="utf-8")):
        plan = reads.plan(decision(wire, case["request"]))
        assert plan.spliced.full_ids() == [question["ids"] for question in case["questions"]]


def test_the_template_writes_the_first_token_and_nobody_adds_another() -> None:
    prompts = Prompts(real_tokenizer("llama3"), Prompt())
    (ids,) = prompts.ids(Contents("a", ["b"])).full_ids()
    assert prompts.tokenizer.hf.bos_token_id is not None
    assert ids.count(prompts.tokenizer.hf.bos_token_id) == 1


def test_truncation_and_padding_in_a_tokenizer_file_are_off() -> None:
    file = small_file() | {
        "truncation": {
            "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>",
        },
    }  # fmt: skip
    backend = Backend.from_str(json.dumps(file))
    assert len(backend.encode("abcdef").ids) == 9
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert len(tokenizer.encode("abcdef")) == 6
    assert [len(ids) for ids in tokenizer.encode_many(["abcdef", "a"])] == [6, 1]


def test_a_post_processor_adds_nothing() -> None:
    file = small_file(tokens=(added("<s>"),)) | {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [41], "tokens": ["<s>"]}},
        }
    }
    assert len(small_tokenizer(file).encode("ab")) == 2


def test_a_text_that_the_library_gives_up_on_is_the_requests_fault(qwen3: Prompts) -> None:
    """Its regular expressions give up on ten million spaces, and it panics."""
    tokenizer, text = qwen3.tokenizer, " " * 10_000_000
    for encode in (tokenizer.encode_many, tokenizer.encode_with_spans):
        with pytest.raises(RequestError, match="cannot read this text"):
            encode([text])
    with pytest.raises(RequestError, match="cannot read this text"):
        tokenizer.encode(text)


def test_a_folder_without_a_tokenizer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="--tokenizer the folder"):
        Tokenizer.load(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ({}, "tokenizer.json lacks 'model'"),
        ({"model": {}}, "tokenizer.json lacks 'vocab' in its 'model'"),
        ([], "tokenizer.json is no JSON object"),
        ({"model": {"type": "Magic", "vocab": {}}}, "ModelUntagged"),
    ],
)
def test_a_tokenizer_file_that_lacks_something_is_named(
    tmp_path: Path, file: Any, named: str
) -> None:
    folder = tokenizer_folder("qwen3")
    (tmp_path / "tokenizer_config.json").write_bytes(
        (folder / "tokenizer_config.json").read_bytes()
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(TokenizerError, match=named) as refused:
        Tokenizer.load(str(tmp_path))
    assert "--tokenizer the folder" in str(refused.value)


def test_a_tokenizer_is_never_looked_for_outside_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {}

    def from_pretrained(source: str, **options: Any) -> None:
        asked.update(options)
        raise OSError

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    with pytest.raises(TokenizerError):
        Tokenizer.load("nobody/nothing")
    assert asked == {"trust_remote_code": False, "local_files_only": True}


def test_a_chat_template_file_replaces_the_tokenizers_own(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("[{{ messages[-1].content }}]", encoding="utf-8")
    tokenizer = Tokenizer.load(str(tokenizer_folder("qwen3")), chat_template=file)
    assert Prompts(tokenizer, Prompt()).ids(Contents("a", ["b"])).full_ids() == [
        tokenizer.encode("[ab]")
    ]


def test_a_state_seen_before_is_not_encoded_again_but_for_another_salt(qwen3: Prompts) -> None:
    contents = Contents(
        "The order did not arrive. " * 2000 + "\n\n", ["Question: a", "Question: b"]
    )
    read, found = [], []
    for scope in ("one", "one", "two"):
        with counted(qwen3.tokenizer) as seen:
            found.append(qwen3.ids(contents, scope=scope).full_ids())
        read.append(seen.chars)
    first, again, other = read
    assert again == 0
    assert other == first > 50_000 // 10
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_threads_share_a_splicer_and_its_bytes_stay_bounded(name: str) -> None:
    splicer = Splicer(real_tokenizer(name), cache_bytes=60_000)
    texts = [f"{i} cats & dogs\n" * 800 for i in range(6)]
    tails = ["Question: a", "Question: b", "A: c"]
    wanted = {
        text: splicer.tokenizer.encode_many([text + tail for tail in tails]) for text in texts
    }

    def right(i: int) -> bool:
        text = texts[i % len(texts)]
        spliced = splicer.splice(text, tails, scope=i % 2).full_ids()
        seen = (splicer.pieces.statistics(), splicer.windows.statistics())
        return spliced == wanted[text] and all(cache.bytes <= 60_000 for cache in seen)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(120)))


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gemma3"])
@pytest.mark.parametrize("char", ["a", "-", " ", "\n", "<", "今", "\u0301"])
def test_a_long_run_is_encoded_a_few_times_and_not_once_for_each_question(
    name: str, char: str
) -> None:
    splicer = Splicer(real_tokenizer(name), cache_bytes=1 << 20)
    head = f"<|im_start|>user\n{char * 40_000}\n\n"
    tails = [f"{opening}{i}" for i in range(8) for opening in ("Question: ", "A: ")]
    wanted = splicer.tokenizer.encode_many([head + tail for tail in tails])
    with counted(splicer.tokenizer) as seen:
        assert splicer.splice(head, tails).full_ids() == wanted
    assert seen.chars < 3 * len(head)
