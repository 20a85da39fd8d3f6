"""Layer-wise relevance propagation, and the rollout of attention."""

from ebcli.eb.lrp import relevance_propagation
from ebcli.eb.rollout import attention_rollout
from ebcli.layouts import saliency_map
from ebcli.methods.call import MethodCall, MethodMaps


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
    maps = []
    for result in results:
        flat = saliency_map(
            result.relevance.flatten(0, 1),
            result.input_shape,
            layer=result.layer,
            channel_axis=result.channel_axis,
            layout=result.layout,
        )
        at_layer = MethodMaps(
            layer=result.layer,
            maps=flat.unflatten(0, result.relevance.shape[:2]),
            relevance=result.relevance,
            special_tokens=result.layout.special if result.layout else 0,
        )
        maps.append(at_layer)
    return maps


def rollout(call: MethodCall) -> list[MethodMaps]:
    """Attention rollout (Abnar and Zuidema, 2020), up to the last of the layers or, at the input, of all blocks."""
    result = attention_rollout(call.net, call.inputs, call.priors, call.layers, head=call.head)
    maps = result.maps[:, None].expand(-1, result.num_scores, *result.maps.shape[1:])
    return [MethodMaps(layer=None, maps=maps, special_tokens=result.special_tokens)]
