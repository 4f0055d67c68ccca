"""`python -m hostmesh look`: what a source holds, seen before anything is trained on it."""
