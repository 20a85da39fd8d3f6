import ebcli


@ebcli.method("strong-gradient", source="my thesis, 2026")
def strong_gradient(call):
    maps = []
    for layer in call.layers_with_gradients():
        is_strong = layer.activation > layer.activation.mean()
        maps.append(layer.maps_of(layer.gradients.abs() * is_strong[:, None]))
    return maps
