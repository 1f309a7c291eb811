"""Hugging Face's models, small and with random weights, with our flex attention where torch's stands."""

import functools

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import flex_attention
from tests.programs.installed import documented, program

transformers = program("transformers")
integration = program("transformers.integrations.flex_attention")
masking = program("transformers.masking_utils")

DEVICE = runtime.device
OURS = "from_math"  # as the documentation registers it
attention = documented("transformers")["attention"]
SIZES = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "max_position_embeddings": 64}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "attention_dropout": 0.0}
DECODERS = {
    "Llama": {},
    "Mistral": {"sliding_window": 7},
    "Qwen3": {},
    "Gemma2": {"sliding_window": 7, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 20},
    "Gemma3": {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "GptOss": {"sliding_window": 7, "num_local_experts": 4, "num_experts_per_tok": 2},  # with sinks
    "Llama4": {"attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 40, "moe_layers": []},
}
TEXT = {"Gemma3", "Llama4"}  # whose configuration of the text model alone has a name of its own


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """transformers' own "flex_attention" calls ours, and so does the function that our documentation registers."""
    monkeypatch.setattr(integration, "flex_attention", flex_attention)
    monkeypatch.setattr(integration.WrappedFlexAttention, "_instance", None)
    # To make the lists of blocks, torch would compile C++ for ten seconds a mask; they are not what is tested.
    monkeypatch.setattr(masking, "create_block_mask", functools.partial(_uncompiled, masking.create_block_mask))
    transformers.AttentionInterface.register(OURS, attention)
    transformers.AttentionMaskInterface.register(OURS, masking.flex_attention_mask)


def _uncompiled(create_block_mask, *arguments, _compile=False, **options):
    return create_block_mask(*arguments, **options)


def ways(name):
    """transformers' own function has no sinks on the CPU, where torch gives no lse; a registered one has them."""
    without_sinks = name == "GptOss" and DEVICE.type == "cpu"
    return [OURS] if without_sinks else ["flex_attention", OURS]


DECODERS_AND_WAYS = [(name, way) for name in DECODERS for way in ways(name)]


def decoder(name, **options):
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}{'Text' * (name in TEXT)}Config")(**SIZES | DECODERS[name] | options)
    return far_from_uniform(getattr(transformers, f"{name}ForCausalLM")(made).to(DEVICE))


@torch.no_grad()
def far_from_uniform(model):
    """Weights as small as they start leave all logits equal, and every attention right."""
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            parameter.copy_(torch.linspace(-1.0, 1.0, parameter.numel()))
        elif parameter.ndim > 1 or "bias_table" in name:
            parameter.mul_(5.0)
    return model.eval()


def tokens(B, T):
    torch.manual_seed(1)
    return torch.randint(2, 60, (B, T), device=DEVICE)


def trained(model, way, **inputs):
    """``(logits, gradients)`` of a step of training with the attention function ``way``."""
    model.set_attn_implementation(way)
    model.zero_grad()
    out = model(**inputs)
    out.loss.backward()
    return out.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def agree(got, want, rows=slice(None)):
    (logits, gradients), (wanted_logits, wanted_gradients) = got, want
    torch.testing.assert_close(logits[rows], wanted_logits[rows], atol=2e-4, rtol=2e-4)
    assert gradients.keys() == wanted_gradients.keys() and len(gradients) > 5
    for name, wanted in wanted_gradients.items():
        error, largest = (gradients[name] - wanted).abs().max(), wanted.abs().max()
        assert error <= 5e-4 * largest + 1e-7, f"{name}: {error:.1e} of {largest:.1e}"


@pytest.mark.parametrize(("name", "way"), DECODERS_AND_WAYS)
def test_logits_and_gradients_beside_eager(name, way):
    """Two sequences of unequal length, padded on the left, longer than windows and chunks."""
    model, ids = decoder(name), tokens(2, 19)
    kept = torch.ones_like(ids)
    kept[1, :5] = 0
    labels = ids.masked_fill(kept.roll(1, -1) * kept == 0, -100)  # none is asked of a token that pads
    inputs = {"input_ids": ids, "attention_mask": kept, "labels": labels}
    agree(trained(model, way, **inputs), trained(model, "eager", **inputs), kept.bool())


@pytest.mark.parametrize(("name", "way"), DECODERS_AND_WAYS)
def test_generation_beside_eager(name, way):
    model, ids = decoder(name), tokens(2, 11)
    kept = torch.ones_like(ids)
    kept[1, :4] = 0
    options = {"attention_mask": kept, "max_new_tokens": 5, "do_sample": False}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    model.set_attn_implementation("eager")
    want = model.generate(ids, **options)
    model.set_attn_implementation(way)
    got = model.generate(ids, **options)
    assert torch.equal(got.sequences, want.sequences)
    torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), atol=2e-4, rtol=2e-4)


def test_generation_makes_no_kernel_a_token(monkeypatch, tmp_path):
    """The offset of the cache, a number that grows by one a token, stands in what the mask captures."""
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path))  # where the text of what is compiled is written
    made = []

    def noted(module, query, *rest, **options):
        out = attention(module, query, *rest, **options)
        made.append(len(list(tmp_path.glob("*.py"))))
        return out

    transformers.AttentionInterface.register(OURS, noted)
    model, ids = decoder("Mistral", sliding_window=23), tokens(1, 33)  # numbers that no other test has
    model.set_attn_implementation(OURS)
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert len(made) == 2 * 8 and made[0] > 0
    assert made[-1] == made[7] <= made[1] + 4  # a new number once as itself, then as an argument


@torch.no_grad()
@pytest.mark.parametrize("way", ["flex_attention", OURS])
def test_a_cache_of_fixed_length(way):
    """Its keys reach past the last token, and its offset is a tensor, which the mask captures."""
    model, ids = decoder("Mistral"), tokens(2, 15)
    model.set_attn_implementation("eager")
    want = model(ids, use_cache=False).logits
    model.set_attn_implementation(way)
    cache = transformers.StaticCache(model.config, max_cache_len=24)
    got = [model(part, past_key_values=cache).logits for part in ids.split([9, 4, 1, 1], 1)]
    torch.testing.assert_close(torch.cat(got, 1), want, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("way", ["flex_attention", OURS])
def test_packed_sequences_are_as_alone(way):
    """Several in one row, which positions that begin at 0 again tell apart."""
    model, ids = decoder("Mistral"), tokens(1, 23)
    position_ids = torch.cat([torch.arange(n, device=DEVICE) for n in (5, 1, 17)])[None]
    model.set_attn_implementation("eager")
    alone = torch.cat([model(part, use_cache=False).logits for part in ids.split([5, 1, 17], 1)], 1)
    model.set_attn_implementation(way)
    packed = model(ids, position_ids=position_ids, use_cache=False).logits
    torch.testing.assert_close(packed, alone, atol=2e-4, rtol=2e-4)


def test_a_step_of_training_with_checkpoints_is_one_without():
    inputs = {"input_ids": tokens(2, 19), "labels": tokens(2, 19), "use_cache": False}
    model = decoder("Gemma2")
    want = trained(model.train(), OURS, **inputs)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    agree(trained(model, OURS, **inputs), want)


def test_a_step_of_training_in_bfloat16():
    """Under autocast, where q and k come out of the rotation in float32 and v of its projection in bfloat16."""
    inputs = {"input_ids": tokens(2, 19), "labels": tokens(2, 19)}
    model = decoder("Llama").train()
    want, _ = trained(model, "eager", **inputs)
    for way in ("flex_attention", OURS):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            got, gradients = trained(model, way, **inputs)
        assert (got.float() - want).norm() < 0.02 * want.norm()
        assert all(g.isfinite().all() and g.any() for g in gradients.values())


def test_an_encoder_sees_both_sides_and_no_padding():
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = far_from_uniform(transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).to(DEVICE))
    ids, kept = tokens(2, 19), torch.ones(2, 19, dtype=torch.int64, device=DEVICE)
    kept[1, 12:] = 0
    inputs = {"input_ids": ids, "attention_mask": kept, "labels": ids.masked_fill(kept == 0, -100)}
    want = trained(model, "eager", **inputs)
    for way in ("flex_attention", OURS):
        agree(trained(model, way, **inputs), want, kept.bool())


def test_learned_biases_of_position_get_their_gradient():
    """T5's: a tensor that the score mod captures; encoder, decoder and the attention of one to the other. Its batch is 1
    and transformers' score mod takes sequence b of it: more than one sequence is refused, by torch's operator as by ours."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "d_model": 48, "d_kv": 12, "d_ff": 40, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    made = transformers.T5Config(**sizes, relative_attention_num_buckets=8, decoder_start_token_id=0)
    model = far_from_uniform(transformers.T5ForConditionalGeneration(made).to(DEVICE))
    inputs = {"input_ids": tokens(1, 13), "labels": tokens(1, 9)}
    got, want = trained(model, "flex_attention", **inputs), trained(model, "eager", **inputs)
    assert sum("relative_attention_bias" in name for name in got[1]) == 2
    agree(got, want)
