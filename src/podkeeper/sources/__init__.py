"""Sources of pods: files, URLs and the API server, behind the source port."""
