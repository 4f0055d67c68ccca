"""Sources made of other sources: mixtures by weight, one after another, and views of a part of one."""
