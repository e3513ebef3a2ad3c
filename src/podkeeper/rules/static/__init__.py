"""Static pods: from manifests to pods, and their mirror pods in the API."""
