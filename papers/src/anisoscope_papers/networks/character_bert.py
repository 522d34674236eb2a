"""CharacterBERT: a BERT whose word vectors come from a convolutional network over the characters of whole words.

Paper: El Boukkouri et al., "CharacterBERT: Reconciling ELMo and BERT for Word-Level Open-Vocabulary Representations
From Characters" (COLING 2020). Weights and parameter names: github.com/helboukkouri/character-bert (`load_published`)
and huggingface.co/helboukkouri/character-bert{,-medical}, whose pretraining heads are left out. Everything above the
word vectors is transformers' own `BertModel`, attention interface included.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel, initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from anisoscope.errors import UsageError
from anisoscope.models.published import PublishedModel

MAX_WORD_LENGTH = 50
"""Character ids per word: up to 48 UTF-8 bytes between two markers, then padding."""
PADDING_WORD, WORD_START, WORD_END, CHARACTER_PADDING = 0, 259, 260, 261
"""Ids beside the bytes, which are 1 … 256; a padding word is all zeros."""
MARKERS = {"[CLS]": 257, "[SEP]": 258, "[MASK]": 262}
"""Words that stand for one character of their own."""
EMBEDDING_NORM_EPS = 1e-12
"""Fixed in the published code, whatever `layer_norm_eps` says."""

FIXED = {
    "max_word_length": MAX_WORD_LENGTH,
    "max_characters_per_token": MAX_WORD_LENGTH,
    "cnn_activation": "relu",
}
"""Published fields that have one value in every network there is; another is an error."""


class CharacterBertConfig(BertConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """A BERT's configuration with the sizes of the character network; the defaults are the published ones."""

    model_type = "character_bert"
    attribute_map = {  # other published names of fields → ours  # noqa: RUF012
        "character_embeddings_dim": "character_embedding_dim",
        "character_vocab_size": "num_characters",
        "cnn_filters": "character_filters",
        "character_cnn_filters": "character_filters",
    }

    character_embedding_dim: int = 16
    num_characters: int = 262
    character_filters: Sequence[Sequence[int]] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    """Pairs of kernel width and channels."""
    num_highway_layers: int = 2

    def __post_init__(self, **kwargs: Any) -> None:
        """Raise UsageError if a field that is fixed in the published network has another value."""
        for name, value in FIXED.items():
            came = kwargs.pop(name, value)
            if came != value:
                raise UsageError(
                    f"a CharacterBERT with {name} = {value!r}",
                    repr(came),
                    "name another checkpoint",
                )
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]


class Highway(nn.Module):
    """Highway layers: x ← g ∘ x + (1 − g) ∘ relu(h), with h and g affine in x, g through a sigmoid; shape is kept."""

    def __init__(self, size: int, num_layers: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(
            nn.Linear(size, 2 * size) for _ in range(num_layers)
        )

    def forward(self, states: Tensor) -> Tensor:
        """Apply the highway layers to states [..., size]."""
        for layer in self._layers.children():
            candidate, gate = layer(states).chunk(2, dim=-1)
            gate = gate.sigmoid()
            states = gate * states + (1 - gate) * candidate.relu()
        return states


class CharacterCnn(nn.Module):
    """Turn the characters of a word into its vector: embeddings, convolutions, maximum, highway layers, projection."""

    def __init__(self, config: CharacterBertConfig) -> None:
        """Build embeddings, convolutions, highway layers and projection for a configuration."""
        super().__init__()
        dim = config.character_embedding_dim
        channels = sum(size for _, size in config.character_filters)
        # One more row than characters: that of id 0, for padding words.
        self._char_embedding_weights = nn.Parameter(
            torch.empty(config.num_characters + 1, dim)
        )
        self._names = [
            f"char_conv_{index}" for index in range(len(config.character_filters))
        ]
        for name, (width, size) in zip(
            self._names, config.character_filters, strict=True
        ):
            setattr(self, name, nn.Conv1d(dim, size, width))
        self._highways = Highway(channels, config.num_highway_layers)
        self._projection = nn.Linear(channels, config.hidden_size)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Turn (B, T, 50) character ids into (B, T, hidden) word vectors."""
        characters = nn.functional.embedding(
            input_ids.flatten(0, 1), self._char_embedding_weights
        )  # (B T, 50, C)
        # The maximum over all places of a kernel: [word, channels] for each width.
        features = [
            getattr(self, name)(characters.transpose(1, 2)).amax(-1).relu()
            for name in self._names
        ]
        words: Tensor = self._projection(self._highways(torch.cat(features, dim=-1)))
        return words.view(*input_ids.shape[:2], -1)


class CharacterBertModel(PublishedModel, BertModel):  # type: ignore[no-untyped-call]  # as above
    """BERT over words given as characters. Hook `BertLayer` for raw block outputs, (B, T, hidden)."""

    config_class = CharacterBertConfig
    config: CharacterBertConfig
    base_model_prefix = "character_bert"
    # Pretraining heads, and a buffer that old versions of transformers saved.
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012
        r"^cls\.",
        r"^embeddings\.position_ids$",
    ]  # as typed there  # noqa: RUF012, RUF100

    def __init__(self, config: CharacterBertConfig) -> None:
        super().__init__(config)
        self.embeddings.word_embeddings = CharacterCnn(config)  # type: ignore[assignment]  # called as an embedding
        self.embeddings.LayerNorm.eps = EMBEDDING_NORM_EPS
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Run as `BertModel`: `input_ids` (B, T, 50) character ids, or `inputs_embeds` (B, T, hidden) word vectors."""
        if input_ids is not None and kwargs.get("inputs_embeds") is None:
            if input_ids.dim() != 3:
                cure = "make them with CharacterBertTokenizer: one row of character ids per word"
                raise UsageError(
                    "character ids of shape (B, T, 50)",
                    f"shape {tuple(input_ids.shape)}",
                    cure,
                )
            kwargs["inputs_embeds"], input_ids = (
                self.embeddings.word_embeddings(input_ids),
                None,
            )
        return super().forward(input_ids, attention_mask, **kwargs)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as BERT; the highway starts by carrying its input on (bias 1 of the gates), as published."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, CharacterCnn):
            init.normal_(
                module._char_embedding_weights, std=self.config.initializer_range
            )
            for layer in module._highways._layers.children():
                bias = layer.get_parameter("bias")  # of candidate, then gate
                init.copy_(
                    bias, torch.arange(len(bias), device=bias.device) >= len(bias) // 2
                )


class CharacterBertTokenizer:
    """Tokenizer: text → words by BERT's basic tokenisation → character ids; there is no vocabulary.

    The markers `[CLS]`, `[SEP]` and `[MASK]` may also be written in a text.
    """

    def __init__(self, lower_case: bool = True) -> None:
        self._normalizer = BertNormalizer(lowercase=lower_case)
        self._splitter = BertPreTokenizer()

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Tokenise B texts: `input_ids` (B, T, 50) and `attention_mask` (B, T), padded on the right to the longest."""
        return self.encode([self.tokenize(text) for text in texts])

    def tokenize(self, text: str) -> list[str]:
        """Split a text into words: lower case without accents (if set), punctuation separate, markers kept whole."""
        words: list[str] = []
        for piece in re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", text):
            split = self._splitter.pre_tokenize_str(
                self._normalizer.normalize_str(piece)
            )
            words += [piece] if piece in MARKERS else [word for word, _ in split]
        return words

    def encode(self, sentences: Sequence[Sequence[str]]) -> dict[str, Tensor]:
        """Encode B lists of words: `input_ids` (B, T, 50) and `attention_mask` (B, T)."""
        rows = [
            [encode_word(word) for word in ("[CLS]", *words, "[SEP]")]
            for words in sentences
        ]
        input_ids = torch.full(
            (len(rows), max(map(len, rows)), MAX_WORD_LENGTH), PADDING_WORD
        )
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = torch.tensor(row)
        return {
            "input_ids": input_ids,
            "attention_mask": (input_ids[..., 0] != PADDING_WORD).long(),
        }


def encode_word(word: str) -> list[int]:
    """Return the 50 character ids of a word or marker."""
    # Bytes move up by one, since 0 pads words; two places are for the markers of
    # beginning and end.
    inside = (
        [MARKERS[word]]
        if word in MARKERS
        else [byte + 1 for byte in word.encode()[: MAX_WORD_LENGTH - 2]]
    )
    ids = [WORD_START, *inside, WORD_END]
    return ids + [CHARACTER_PADDING] * (MAX_WORD_LENGTH - len(ids))
