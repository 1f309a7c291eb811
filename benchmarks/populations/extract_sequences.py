"""Attention, recurrences and short convolutions of real sequence models, from the defaults of their configuration classes."""

import importlib

LENGTHS = (512, 2048, 8192, 32768, 131072)
TOKENS = 16384  # about as many a GPU sees at a time: shorter sequences come in a batch

# Language models of transformers, by ``model_type``. A default that is a toy's, or missing, is given beside it.
CAUSAL = {
    "gpt2": {}, "gpt_neox": {}, "gptj": {}, "llama": {}, "mistral": {}, "mixtral": {}, "ministral": {}, "qwen2": {},
    "qwen3": {}, "gemma": {}, "gemma2": {}, "gemma3_text": {}, "gemma3n_text": {}, "phi": {}, "phi3": {}, "starcoder2": {},
    "cohere2": {}, "gpt_oss": {}, "falcon": {"num_key_value_heads": 1}, "olmo2": {}, "granite": {}, "smollm3": {},
    "qwen3_next": {}, "glm4": {}, "exaone4": {}, "helium": {}, "nemotron_h": {}, "recurrent_gemma": {}, "vaultgemma": {},
    "olmo_hybrid": {}, "stablelm": {},
}  # fmt: skip
ALIBI = {"mpt": {}}
PACKED = ("llama", "qwen3", "mistral", "gemma3_text", "smollm3", "gpt2")  # whose training packs documents
PREFIX = {"paligemma": ("gemma", 256), "t5gemma": ("gemma2", 1024)}  # the text model, and tokens that all see
SEQUENCES = {  # encoders that see everything: how many tokens, from (image / patch)^2 + 1 and the like
    "vit": 197, "dinov2": 257, "clip_vision_model": 50, "siglip_vision_model": 196, "bert": 512, "esm": 1024, "whisper": 1500,
    "videomae": 1568, "vit_mae": 197,
}  # fmt: skip
UNET = "https://huggingface.co/stable-diffusion-v1-5/stable-diffusion-v1-5/blob/main/unet/config.json"
NEIGHBOURS = {"dinat": (56, 28)}  # neighbourhood attention: images of so many pixels a side
SCALAR_GATES = {  # of transformers: the fields (heads, state's rows K, state's columns V)
    "mamba2": ("num_heads", "state_size", "head_dim"),
    "bamba": ("mamba_n_heads", "mamba_d_state", "mamba_d_head"),
    "granitemoehybrid": ("mamba_n_heads", "mamba_d_state", "mamba_d_head"),
    "nemotron_h": ("mamba_num_heads", "ssm_state_size", "mamba_head_dim"),
    "qwen3_next": ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    "olmo_hybrid": ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
}
FLA = {  # of flash-linear-attention: the configuration's module and class, and the gate
    "gla": ("gla.configuration_gla", "GLAConfig", "gk"),
    "retnet": ("retnet.configuration_retnet", "RetNetConfig", "g_gamma"),
    "hgrn2": ("hgrn2.configuration_hgrn2", "HGRN2Config", "gk"),
    "linear_attn": ("linear_attn.configuration_linear_attn", "LinearAttentionConfig", "none"),
    "lightnet": ("lightnet.configuration_lightnet", "LightNetConfig", "gk"),
    "kimi_linear": (None, None, "gk"),
    "minimax": (None, None, "g_gamma"),
}
SHORT = {  # short convolutions of transformers: (channels of the configuration, field of the width)
    "mamba2": (lambda c: c.expand * c.hidden_size + 2 * c.n_groups * c.state_size, "conv_kernel"),
    "bamba": (lambda c: c.mamba_expand * c.hidden_size + 2 * c.mamba_n_groups * c.mamba_d_state, "mamba_d_conv"),
    "nemotron_h": (lambda c: c.mamba_num_heads * c.mamba_head_dim + 2 * c.n_groups * c.ssm_state_size, "conv_kernel"),
    "qwen3_next": (
        lambda c: 2 * c.linear_num_key_heads * c.linear_key_head_dim
        + c.linear_num_value_heads * c.linear_value_head_dim,
        "linear_conv_kernel_dim",
    ),
    "kimi_linear": (lambda c: c.linear_num_heads * c.linear_head_dim, "linear_conv_kernel_dim"),
    "olmo_hybrid": (lambda c: c.linear_num_value_heads * c.linear_value_head_dim, "linear_conv_kernel_dim"),
    "recurrent_gemma": (lambda c: c.lru_width, "conv1d_width"),
    "lfm2": (lambda c: c.hidden_size, "conv_L_cache"),
    "mamba": (lambda c: c.expand * c.hidden_size, "conv_kernel"),
    "jamba": (lambda c: c.mamba_expand * c.hidden_size, "mamba_d_conv"),
    "falcon_mamba": (lambda c: c.expand * c.hidden_size, "conv_kernel"),
}
JET = {  # models whose values a Jet-Nemotron-like layer would convolve with taps of its own: their width, and taps
    "llama": 4, "qwen3": 4, "smollm3": 3, "gemma2": 8, "gpt2": 5, "phi": 2, "granite": 6, "mistral": 7, "helium": 4,
}  # fmt: skip


def configuration(name, given=None):
    """A configuration's defaults, as an object with attributes."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[name]()
    for field, value in (given or {}).items():
        setattr(config, field, value)
    return config


def first(config, *names):
    """The first of these attributes that is there and not ``None``."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def heads_of(config):
    """``(query heads, key heads, head size)``."""
    H = first(config, "num_attention_heads", "n_head", "n_heads", "encoder_attention_heads")
    width = first(config, "hidden_size", "n_embd", "d_model")
    Hkv = first(config, "num_key_value_heads") or H
    return H, Hkv, first(config, "head_dim") or width // H


def layer(variant, heads, S, **more):
    """One attention layer over sequences of S tokens, in a batch of about ``TOKENS`` tokens."""
    H, Hkv, D = heads
    return {"variant": variant, "B": max(1, TOKENS // S), "H": H, "Hkv": Hkv, "M": S, "N": S, "D": D, **more}


def lengths(config, most=LENGTHS[-1]):
    """The population's lengths that a model is made for."""
    longest = min(first(config, "max_position_embeddings", "n_positions", "max_seq_len") or 2048, most)
    return [S for S in LENGTHS if S <= longest] or [longest]


def decoder(name, given):
    """A language model's kinds of layers: causal, or a window, each with the model's softcap, at its lengths."""
    config = configuration(name, given)
    heads = heads_of(config)
    softcap = first(config, "attn_logit_softcapping", "attn_logit_softcapping")
    more = {"softcap": softcap} if softcap else {}
    window = first(config, "sliding_window", "attention_window_size")
    kinds = first(config, "layer_types") or (["sliding_attention"] if window else ["full_attention"])
    layers = []
    for S in lengths(config):
        if "full_attention" in kinds or not window:
            layers.append(layer("causal", heads, S, **more))
        if window and window < S:
            layers.append(layer("window", heads, S, window=window, **more))
        if name in PACKED and S >= 2048:
            layers.append(layer("documents", heads, S, **more))
    return {"name": name, "source": f"transformers {type(config).__name__}()", "layers": layers}


def encoder(name, S):
    """A model in which every token sees every other."""
    config = configuration(name)
    return {
        "name": name,
        "source": f"transformers {type(config).__name__}(), {S} tokens",
        "layers": [layer("full", heads_of(config), S)],
    }


def attention():
    """Every model's attention layers."""
    models = [decoder(name, given) for name, given in CAUSAL.items()]
    models += [encoder(name, S) for name, S in SEQUENCES.items()]
    for name, given in ALIBI.items():
        config = configuration(name, given)
        layers = [layer("alibi", heads_of(config), S) for S in (512, 2048, 8192)]
        models.append({"name": name, "source": f"transformers {type(config).__name__}()", "layers": layers})
    for name, (text, prefix) in PREFIX.items():
        config = configuration(text)
        layers = [layer("prefix", heads_of(config), S, prefix=prefix) for S in (2048, 8192)]
        models.append({"name": name, "source": f"transformers {type(config).__name__}(), {prefix} tokens", "layers": layers})
    for name, sides in NEIGHBOURS.items():
        config = configuration(name)
        layers = []
        for i, (H, side) in enumerate(zip(config.num_heads, sides)):
            D = config.embed_dim * 2**i // H
            layers.append(layer("natten", (H, H, D), side * side, kernel=config.kernel_size, width=side))
        models.append({"name": name, "source": f"transformers {type(config).__name__}()", "layers": layers})
    modernbert = configuration("modernbert")
    layers = [layer("full", heads_of(modernbert), S) for S in (512, 8192)]
    layers += [layer("local", heads_of(modernbert), S, window=modernbert.sliding_window) for S in (2048, 8192)]
    models.append({"name": "modernbert", "source": "transformers ModernBertConfig()", "layers": layers})
    layers = [layer("full", (8, 8, D), S) for D, S in ((40, 4096), (80, 1024), (160, 256))]
    models.append({"name": "stable-diffusion-v1-5 unet", "source": UNET, "layers": layers})
    return models


def sequences(**sizes):
    """One layer for several lengths."""
    return [{"B": max(1, TOKENS // S), "T": S, **sizes} for S in (512, 2048, 8192, 32768, 131072)]


def recurrences():
    """Every model's linear recurrence: its gate, its heads, and the sides of its state."""
    models = []
    for name, fields in SCALAR_GATES.items():
        config = configuration(name)
        H, K, V = (getattr(config, field) for field in fields)
        source = f"transformers {type(config).__name__}()"
        models.append({"name": name, "source": source, "layers": sequences(gate="g", H=H, K=K, V=V)})
    for name, (module, kind, gate) in FLA.items():
        if module is None:
            config = configuration(name)
            H, D = first(config, "linear_num_heads", "num_attention_heads"), first(config, "linear_head_dim")
            K = V = D or config.hidden_size // H
            source = f"transformers {type(config).__name__}()"
        else:
            config = getattr(importlib.import_module(f"fla.models.{module}"), kind)()
            H = config.num_heads or config.hidden_size // config.expand_ratio
            K = int(config.hidden_size * getattr(config, "expand_k", 1.0)) // H
            V = int(config.hidden_size * getattr(config, "expand_v", 1.0)) // H
            source = f"flash-linear-attention {kind}()"
        models.append({"name": name, "source": source, "layers": sequences(gate=gate, H=H, K=K, V=V)})
    return models


def short_convolutions():
    """Every model's short convolution along time: taps that all tokens share, and taps that each token brings."""
    models = []
    for name, (channels, width) in SHORT.items():
        config = configuration(name)
        sizes = {"D": channels(config), "W": getattr(config, width), "taps": "static"}
        models.append({"name": name, "source": f"transformers {type(config).__name__}()", "layers": sequences(**sizes)})
    for name, W in JET.items():
        config = configuration(name)
        H, Hkv, D = heads_of(config)
        source = f"the width of transformers {type(config).__name__}(), with {W} taps a token"
        layers = sequences(D=H * D, W=W, taps="token")
        models.append({"name": f"{name}, dynamic taps", "source": source, "layers": layers})
    return models
