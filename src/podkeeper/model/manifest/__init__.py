"""Manifests: Kubernetes objects as people write them, in YAML or JSON.

    bytes --read_documents--> documents, problems --decode--> typed objects
                                                  `--unknown_fields--> warnings

Text is read exactly as `kubectl` and the kubelet read it (`scalars` tells the traps, `tree` builds
the values, `documents` keeps documents apart and knows their lines, `typed` gives them types).
Whatever comes in, only `BadInput` comes out, and each of its problems names file, line and field.
This is the one room that knows PyYAML. The Go ancestors are k8s.io/apimachinery/pkg/util/yaml and
sigs.k8s.io/yaml.
"""

from podkeeper.model.manifest.documents import Document, Reading, Text, read_documents
from podkeeper.model.manifest.typed import decode, type_of, unknown_fields

__all__ = ["Document", "Reading", "Text", "decode", "read_documents", "type_of", "unknown_fields"]
