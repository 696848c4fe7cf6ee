# SPDX-License-Identifier: MIT
"""Safetensors files for the oracles: enough of the format for what the tool reads and writes."""

import json
import os
import struct
import subprocess
import tempfile

import numpy as np

# bfloat16 travels as uint16: the operators move bytes.
NAMES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I8": np.int8, "I16": np.int16,
         "I32": np.int32, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "I64": np.int64}


def save(path, tensors):
    """tensors: {name: (dtype name, array)}"""
    header, blobs, end = {}, [], 0
    for name, (dtype, array) in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [end, end + len(blob)]}
        blobs.append(blob)
        end += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])], NAMES[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def run(op, tensors, **attributes):
    """Applies one operator through the tool and returns its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
        save(source, tensors)
        command = [os.environ["PAGEDKV"], "run", op, source, target]
        for name, value in attributes.items():
            command += [f"--{name}", str(value)]
        subprocess.run(command, check=True)
        return load(target)
