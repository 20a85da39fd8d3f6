"""The ImageNet weights of EfficientNet-Lite0: ``efficientnet-lite0.pth`` beside this file."""
