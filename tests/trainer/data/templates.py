"""Chat templates in the style of well-known models, and a tokenizer that merges across their seams."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

QWEN = """
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content }}
{%- else %}{{- '<|im_start|>system\\nYou are helpful.' }}{%- endif %}
{%- if tools %}{{- '\\n# Tools\\n' + tools | tojson }}{%- endif %}{{- '<|im_end|>\\n' }}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant' }}
{%- if m.content %}{{- '\\n' + m.content }}{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN3 = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set said = m.content.split('</think>')[-1].lstrip('\\n') %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') if '</think>' in m.content else '' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
{{- said + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

THINKING = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
SILENT = (
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
QWEN3_ARGUMENT = QWEN3.replace(THINKING, THINKING + SILENT)
"""With the argument that Qwen3's own template has."""

LLAMA3 = """
{{- bos_token }}{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}{{- bos_token }}
{%- for m in rest %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- if m.role == 'user' %}
{%- if loop.first and system %}{{- '[INST] ' + system + '\\n\\n' + m.content + ' [/INST]' }}
{%- else %}{{- '[INST] ' + m.content + ' [/INST]' }}{%- endif %}
{%- else %}{{- ' ' + m.content | trim + eos_token }}{%- endif %}{%- endfor %}"""

MISTRAL_LAST = MISTRAL.replace("loop.first and system", "loop.index0 >= rest | length - 2 and system")
"""Writes the system prompt into the last message of the user, as Mistral's later templates do."""

GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{%- set first = messages[0].content + '\\n\\n' %}{%- set rest = messages[1:] %}
{%- else %}{%- set first = '' %}{%- set rest = messages %}{%- endif %}
{%- for m in rest %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- (first if loop.first else '') + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

MARKED = """
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{- m.content + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
{%- else %}{{- m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

MARKED_WITHOUT_END = MARKED.replace(
    "m.content + '<|im_end|>' }}{% endgeneration %}{{- '\\n'", "m.content }}{% endgeneration %}{{- '<|im_end|>\\n'", 1
)

ENDS = {
    "qwen": (QWEN, "<|im_end|>"),
    "qwen3": (QWEN3, "<|im_end|>"),
    "llama3": (LLAMA3, "<|eot_id|>"),
    "mistral": (MISTRAL, "</s>"),
    "gemma": (GEMMA, "<end_of_turn>"),
    "marked": (MARKED, "<|im_end|>"),
    "marked without end": (MARKED_WITHOUT_END, "<|im_end|>"),
}
"""Templates, and how a turn of the assistant ends in each."""
SPECIAL = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]


@cache
def _byte_level() -> str:
    """Byte-level BPE without a split before it: it merges whatever was seen together often, white space with letters, letters of two roles."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    seams = [
        f"{left}{gap}{right}" for left in "абгжxш" for gap in ("", " ", "\n", "\n\n", " \n") for right in "абгжxш[<"
    ]
    words = [
        "assistant\n",
        "model\n",
        "user\n",
        "[INST] ",
        " [/INST]",
        " [/INST] ",
        "system\n",
        "xy xz yш",
        "аб ва",
        '{"name": ',
    ]
    corpus = (seams + words) * 20
    made.train_from_iterator(
        corpus,
        trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return made.to_str()


@cache
def tokenizer(template: str | None, end: str = "</s>") -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_byte_level()), bos_token="<s>", eos_token=end, chat_template=template
    )
