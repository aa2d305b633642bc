"""Writes the bill of materials of a release, SPDX 2.3 as JSON: each file with its checksums, and what others' code is
in the wheels. spdx-tools makes it, and refuses one that SPDX does not allow.

    sbom.py OUT VERSION REQUIREMENTS CUDA_VERSION EPOCH FILE...        CUDA_VERSION: empty without CUDA"""

import datetime
import hashlib
import os
import re
import sys

from spdx_tools.common.spdx_licensing import spdx_licensing
from spdx_tools.spdx import model
from spdx_tools.spdx.writer.write_anything import write_file

NVIDIA = "LicenseRef-NVIDIA-CUDA-EULA"
NOTHING = model.SpdxNoAssertion()


def package(name, version, licence, comment):
    licence = spdx_licensing.parse(licence)
    return model.Package(spdx_id="SPDXRef-" + re.sub("[^A-Za-z0-9.-]", "-", name), name=name, version=version,
                         download_location=NOTHING, files_analyzed=False, license_concluded=licence,
                         license_declared=licence, copyright_text=NOTHING, comment=comment)


def listed(path):
    with open(path, "rb") as file:
        content = file.read()
    sums = {name: hashlib.new(name.lower(), content).hexdigest() for name in ("SHA1", "SHA256")}  # SPDX asks for SHA1
    return model.File(spdx_id="SPDXRef-File-" + sums["SHA256"][:16], name="./" + os.path.basename(path),
                      checksums=[model.Checksum(model.ChecksumAlgorithm[name], value) for name, value in sums.items()],
                      license_concluded=spdx_licensing.parse("Apache-2.0"), copyright_text=NOTHING)


def main():
    out, version, requirements, cuda, epoch, *paths = sys.argv[1:]
    with open(requirements, encoding="ascii") as lines:
        pinned = dict(re.findall(r"^(\S+)==(\S+)$", lines.read(), re.MULTILINE))
    inside = [package("OpenBLAS", pinned["scipy-openblas32"], "BSD-3-Clause",
                      "in the wheels, as the package scipy-openblas32 has it, with gfortran's libraries"),
              package("libc++", pinned["ziglang"], "Apache-2.0 WITH LLVM-exception",
                      "linked into the wheels' liblasp.so, of the package ziglang")]
    licences = []
    if cuda:
        inside.append(package("cudart", cuda, NVIDIA, "CUDA's runtime, linked into liblasp.so"))
        licences.append(model.ExtractedLicensingInfo(
            license_id=NVIDIA, license_name="NVIDIA CUDA Toolkit End User License Agreement",
            extracted_text="The agreement's attachment A allows the runtime to be redistributed."))
    whole, files = package("liblasp", version, "Apache-2.0", "this release"), [listed(path) for path in sorted(paths)]
    document = "SPDXRef-DOCUMENT"
    kind = model.RelationshipType
    # The files are not called parts of the package: SPDX then wants the package's own files, which are the sources.
    relations = [model.Relationship(document, kind.DESCRIBES, whole.spdx_id)]
    relations += [model.Relationship(document, kind.DESCRIBES, file.spdx_id) for file in files]
    relations += [model.Relationship(whole.spdx_id, kind.CONTAINS, part.spdx_id) for part in inside]
    created = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).replace(tzinfo=None)
    creator = model.Actor(model.ActorType.TOOL, "packaging/release/sbom.py")
    information = model.CreationInfo("SPDX-2.3", document, f"liblasp-{version}", f"urn:liblasp:{version}:{epoch}",
                                     [creator], created)
    write_file(model.Document(information, packages=[whole, *inside], files=files, relationships=relations,
                              extracted_licensing_info=licences), out)


if __name__ == "__main__":
    main()
