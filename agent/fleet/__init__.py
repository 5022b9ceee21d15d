"""PCs that find each other, trust each other and share a model out."""
