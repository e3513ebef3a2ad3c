"""Values: Kubernetes objects, runtime records, messages between modules, errors."""
