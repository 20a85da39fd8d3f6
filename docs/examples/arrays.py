from torch import nn

import ebcli


def bands():  # satellite images with 13 bands
    net = nn.Sequential(
        *(nn.Conv2d(13, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2)),
    )
    net.preprocessing = ebcli.Preprocessing(resize=64, crop=64, range=(0, 10000), bands=(4, 3, 2))
    net.categories = ["water", "corn"]
    return net


def ball():  # volumes with one channel
    net = nn.Sequential(
        *(nn.Conv3d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv3d(8, 16, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 2)),
    )
    net.preprocessing = ebcli.Preprocessing(depth=32, crop=64, range=(-160, 240))
    net.categories = ["cubes", "ball"]
    return net
