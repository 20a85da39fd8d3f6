import csv
from pathlib import Path

import torch
from torch import nn

import ebcli


class Diagnosis(nn.Module):
    preprocessing = ebcli.Preprocessing(resize=96, crop=96)
    categories = "healthy", "ill"
    columns = "age", "weight", "dose"

    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()
        )
        self.head = nn.Linear(8 + 3, 2)

    def forward(self, image, table):
        return self.head(torch.cat([self.picture(image).mean((2, 3)), table], 1))

    def other_inputs(self, path):
        if path is None:
            return torch.zeros(3)  # an example
        with Path("patients.csv").open(newline="") as file:
            rows = {row["file"]: row for row in csv.DictReader(file)}
        row = rows[Path(path).name]
        return torch.tensor([float(row[column]) for column in self.columns])
