"""Device code: how one tile is computed. No policy, and nothing to import: `jit` compiles the files of these folders."""
