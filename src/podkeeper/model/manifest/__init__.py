"""Parser for manifests: Kubernetes objects in YAML or JSON.

    bytes --read_documents--> documents, problems --decode--> typed objects
                                                  `--unknown_fields--> warnings

The parser reads text exactly as `kubectl` and the kubelet do. `scalars` converts scalars, `tree` builds values,
`documents` splits the text into documents and finds lines, `typed` converts values to typed objects.

The only exception is `BadInput`. Each of its problems names file, line and field. No other package imports PyYAML.
Kubelet counterparts: k8s.io/apimachinery/pkg/util/yaml and sigs.k8s.io/yaml.
"""

from podkeeper.model.manifest.documents import Document, ParsedManifest, Text, read_documents
from podkeeper.model.manifest.typed import decode, type_of, unknown_fields

__all__ = ["Document", "ParsedManifest", "Text", "decode", "read_documents", "type_of", "unknown_fields"]
