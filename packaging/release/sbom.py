"""Prints the bill of materials of a release, SPDX 2.3 as JSON: each file with its checksum, and what others' code is in
the wheels.     sbom.py VERSION REQUIREMENTS CUDA_VERSION EPOCH FILE...        CUDA_VERSION: empty without CUDA"""

import hashlib
import json
import os
import re
import sys
import time


def package(name, version, licence, url, comment):
    return {"name": name, "SPDXID": f"SPDXRef-{re.sub('[^A-Za-z0-9.-]', '-', name)}", "versionInfo": version,
            "downloadLocation": url, "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence,
            "copyrightText": "NOASSERTION", "comment": comment}


def main():
    version, requirements, cuda, epoch, *files = sys.argv[1:]
    with open(requirements, encoding="ascii") as lines:
        pinned = dict(re.findall(r"^(\S+)==(\S+)$", lines.read(), re.MULTILINE))
    inside = [package("OpenBLAS", pinned["scipy-openblas32"], "BSD-3-Clause", "NOASSERTION",
                      "in the wheels, as the package scipy-openblas32 has it, with gfortran's libraries"),
              package("libc++", pinned["ziglang"], "Apache-2.0 WITH LLVM-exception", "NOASSERTION",
                      "linked into the wheels' liblasp.so, of the package ziglang")]
    if cuda:
        inside.append(package("cudart", cuda, "LicenseRef-NVIDIA-CUDA-EULA", "NOASSERTION",
                              "CUDA's runtime, linked into liblasp.so"))
    whole = package("liblasp", version, "Apache-2.0", "NOASSERTION", "this release")
    listed, relations = [], [("SPDXRef-DOCUMENT", "DESCRIBES", whole["SPDXID"])]
    for path in sorted(files):
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        name = os.path.basename(path)
        identity = f"SPDXRef-File-{digest[:16]}"
        listed.append({"fileName": f"./{name}", "SPDXID": identity, "licenseConcluded": "Apache-2.0",
                       "copyrightText": "NOASSERTION",
                       "checksums": [{"algorithm": "SHA256", "checksumValue": digest}]})
        relations.append((whole["SPDXID"], "CONTAINS", identity))
    relations += [(whole["SPDXID"], "CONTAINS", part["SPDXID"]) for part in inside]
    document = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
                "name": f"liblasp-{version}", "documentNamespace": f"urn:liblasp:{version}:{epoch}",
                "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch))),
                                 "creators": ["Tool: packaging/release/sbom.py"]},
                "packages": [whole, *inside], "files": listed,
                "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                                  for a, kind, b in relations]}
    if cuda:
        document["hasExtractedLicensingInfos"] = [
            {"licenseId": "LicenseRef-NVIDIA-CUDA-EULA", "extractedText": "NVIDIA CUDA Toolkit End User License Agreement; "
             "its attachment A allows the runtime to be redistributed"}]
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
