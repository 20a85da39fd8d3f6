"""Layer-wise relevance propagation, and the rollout of attention."""

from ebcli.eb.lrp import relevance_propagation
from ebcli.eb.rollout import attention_rollout
from ebcli.methods.call import MethodCall, MethodMaps, maps_at


def lrp(call: MethodCall) -> list[MethodMaps]:
    """Relevance by the gamma rule (Montavon et al., 2019) with constant attention weights (Ali et al., 2022)."""
    results = relevance_propagation(
        call.net,
        call.inputs,
        call.priors,
        call.layers,
        head=call.head,
        unsupported="gradient" if call.allow_unsupported else "error",
    )
    return [maps_at(result.cells, result.relevance) for result in results]


def rollout(call: MethodCall) -> list[MethodMaps]:
    """Attention rollout (Abnar and Zuidema, 2020), up to the last of the layers or, at the input, of all blocks."""
    result = attention_rollout(call.net, call.inputs, call.priors, call.layers, head=call.head)
    maps = result.maps[:, None].expand(-1, result.num_scores, *result.maps.shape[1:])
    return [MethodMaps(layer=None, maps=maps, special_tokens=result.special_tokens)]
