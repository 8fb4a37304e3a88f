"""Parameter shapes of transformer models, in the order of `named_parameters()` of their frameworks."""

from __future__ import annotations

Shapes = list[tuple[str, tuple[int, ...]]]


def _affine(name: str, outputs: int, inputs: int) -> Shapes:
    return [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]


def _norm(name: str, width: int) -> Shapes:
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


def bert(*, width: int, layers: int, vocabulary: int = 30522, positions: int = 512) -> Shapes:
    """Return BertModel of transformers: embeddings, encoder layers, pooler."""
    shapes: Shapes = [
        ("embeddings.word_embeddings.weight", (vocabulary, width)),
        ("embeddings.position_embeddings.weight", (positions, width)),
        ("embeddings.token_type_embeddings.weight", (2, width)),
        *_norm("embeddings.LayerNorm", width),
    ]
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            shapes += _affine(f"{layer}.attention.self.{part}", width, width)
        shapes += _affine(f"{layer}.attention.output.dense", width, width)
        shapes += _norm(f"{layer}.attention.output.LayerNorm", width)
        shapes += _affine(f"{layer}.intermediate.dense", 4 * width, width)
        shapes += _affine(f"{layer}.output.dense", width, 4 * width)
        shapes += _norm(f"{layer}.output.LayerNorm", width)
    return shapes + _affine("pooler.dense", width, width)


def gpt2(*, width: int = 768, layers: int = 12, vocabulary: int = 50257, positions: int = 1024) -> Shapes:
    """Return GPT2LMHeadModel of transformers; the head is tied to `wte`, and Conv1D keeps (inputs, outputs)."""
    shapes: Shapes = [("wte.weight", (vocabulary, width)), ("wpe.weight", (positions, width))]
    for number in range(layers):
        layer = f"h.{number}"
        shapes += _norm(f"{layer}.ln_1", width)
        shapes += [(f"{layer}.attn.c_attn.weight", (width, 3 * width)), (f"{layer}.attn.c_attn.bias", (3 * width,))]
        shapes += [(f"{layer}.attn.c_proj.weight", (width, width)), (f"{layer}.attn.c_proj.bias", (width,))]
        shapes += _norm(f"{layer}.ln_2", width)
        shapes += [(f"{layer}.mlp.c_fc.weight", (width, 4 * width)), (f"{layer}.mlp.c_fc.bias", (4 * width,))]
        shapes += [(f"{layer}.mlp.c_proj.weight", (4 * width, width)), (f"{layer}.mlp.c_proj.bias", (width,))]
    return shapes + _norm("ln_f", width)


def vit(*, width: int, layers: int, patch: int, image: int = 224, classes: int = 1000) -> Shapes:
    """Return VisionTransformer of torchvision: a module's own parameters come before those of its children."""
    tokens = (image // patch) ** 2 + 1
    shapes: Shapes = [
        ("class_token", (1, 1, width)),
        ("conv_proj.weight", (width, 3, patch, patch)),
        ("conv_proj.bias", (width,)),
        ("encoder.pos_embedding", (1, tokens, width)),
    ]
    for number in range(layers):
        layer = f"encoder.layers.encoder_layer_{number}"
        shapes += _norm(f"{layer}.ln_1", width)
        shapes += [
            (f"{layer}.self_attention.in_proj_weight", (3 * width, width)),
            (f"{layer}.self_attention.in_proj_bias", (3 * width,)),
        ]
        shapes += _affine(f"{layer}.self_attention.out_proj", width, width)
        shapes += _norm(f"{layer}.ln_2", width)
        shapes += _affine(f"{layer}.mlp.0", 4 * width, width)
        shapes += _affine(f"{layer}.mlp.3", width, 4 * width)
    return shapes + _norm("encoder.ln", width) + _affine("heads.head", classes, width)


def llama_layer(*, width: int, hidden: int, key_values: int) -> Shapes:
    """Return one LlamaDecoderLayer of transformers; `key_values` = width of the key and value projections."""
    return [
        ("self_attn.q_proj.weight", (width, width)),
        ("self_attn.k_proj.weight", (key_values, width)),
        ("self_attn.v_proj.weight", (key_values, width)),
        ("self_attn.o_proj.weight", (width, width)),
        ("mlp.gate_proj.weight", (hidden, width)),
        ("mlp.up_proj.weight", (hidden, width)),
        ("mlp.down_proj.weight", (width, hidden)),
        ("input_layernorm.weight", (width,)),
        ("post_attention_layernorm.weight", (width,)),
    ]


def llama_root(*, width: int, vocabulary: int) -> Shapes:
    """Return what LlamaForCausalLM has outside its layers: embedding, last norm, untied head."""
    return [
        ("model.embed_tokens.weight", (vocabulary, width)),
        ("model.norm.weight", (width,)),
        ("lm_head.weight", (vocabulary, width)),
    ]
