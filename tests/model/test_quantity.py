"""Quantities: exact values, and Kubernetes' parsing and formatting."""

import json
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.errors import BadInput
from podkeeper.model.quantity import MAX_INT64, ZERO, Format, Quantity, parse_quantity

SPELLINGS = {
    "a plain number stays": ("100", "100"),
    "thousands take a suffix": ("1000", "1k"),
    "a fraction becomes thousandths": ("0.5", "500m"),
    "no digit before the point is a fraction too": (".5", "500m"),
    "text that looks canonical is kept: a bare point": ("5.", "5."),
    "whole thousandths become units": ("1000m", "1"),
    "bytes stay binary": ("1.5Gi", "1536Mi"),
    "a binary suffix grows as far as it can": ("1024Ki", "1Mi"),
    "small binary amounts become decimal": ("0.5Ki", "512"),
    "binary amounts that are not whole become decimal": ("1.1Ki", "1126400m"),
    "exponents stay exponents": ("12e6", "12e6"),
    "exponents move in steps of three": ("3e-2", "30e-3"),
    "an exponent of zero is dropped when the text is rebuilt": ("1.25e3", "1250"),
    "a capital E with digits is an exponent": ("1E-2", "10e-3"),
    "a capital E alone is exa": ("10E", "10E"),
    "finer than a nano is rounded up": ("0.1n", "1n"),
    "finer than a nano is rounded away from zero": ("-0.0000000001", "-1n"),
    "ten decimals are rounded up at the ninth": ("0.1234567891", "123456790n"),
    "binary amounts are capped at int64": ("10Ei", "9223372036854775807"),
    "binary amounts are capped below zero too": ("-10Ei", "-9223372036854775807"),
    "decimal amounts are not capped": ("12345678901234567890", "12345678901234567890"),
    "text that looks canonical is kept: decimals in threes": ("1.500", "1.500"),
    "text that looks canonical is kept: a plus": ("+5", "+5"),
    "text that looks canonical is kept: leading zeros": ("007Ki", "007Ki"),
    "a multiple of eight is formatted again": ("008Ki", "8Ki"),
    "minus zero is zero": ("-0", "0"),
    "a sign alone is zero": ("+", "0"),
    "a suffix alone is zero": ("Ki", "0"),
    "surrounding spaces are ignored": (" 1Gi ", "1Gi"),
}  # fmt: skip


@pytest.mark.parametrize("written, canonical", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_canonical_form(written: str, canonical: str) -> None:
    assert str(parse_quantity(written)) == canonical


def test_canonical_forms_are_those_of_kubectl() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    signs, numbers = (
        ("", "-"),
        ("1", "8", "0.25", "1.500", "1000", "1024", "999999", "123456789012345678901", "0.0000000012"),
    )
    suffixes = ("", "n", "u", "m", "k", "M", "T", "Ki", "Mi", "Gi", "Ei", "e3", "e-4", "E+2")
    written = [
        *(case[0] for case in SPELLINGS.values()),
        *(f"{sign}{number}{suffix}" for sign in signs for number in numbers for suffix in suffixes),
    ]
    containers = [
        {"name": f"c{n}", "image": "old", "resources": {"limits": {"cpu": text}}} for n, text in enumerate(written)
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}
    command = [kubectl, "set", "image", "--local", "--filename=-", "--output=json", "c0=new"]
    answer = subprocess.run(command, input=json.dumps(pod), capture_output=True, text=True, check=True)
    theirs = [c["resources"]["limits"]["cpu"] for c in json.loads(answer.stdout)["spec"]["containers"]]
    ours = [str(parse_quantity(text)) for text in written]
    assert dict(zip(written, ours, strict=True)) == dict(zip(written, theirs, strict=True))


REFUSED = (
    "", " ", "1\n", "1.5.5", "1K", "1ki", "1e", "1mm", "abc", "1 Gi", "1-5", "1_000", "0x10", "١", "1E5.5", "--1", "1+",
    "1Gi1", "e-10", ".e-10", "1e400000", "1e99999999999999999999", "9" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:20]))
def test_a_malformed_quantity_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"Invalid value: .*quantities must match .*e\.g\. 2, 500m"):
        parse_quantity(text)


@pytest.mark.parametrize("number", [True, float("nan"), float("inf"), 10**5000], ids=["bool", "nan", "inf", "huge"])
def test_booleans_infinities_and_huge_numbers_are_not_quantities(number: float) -> None:
    with pytest.raises(BadInput, match=r"Invalid value: .*quantities must match"):
        parse_quantity(number)


NUMBERS = {
    "an integer": (2, "2"),
    "a fraction": (0.1, "100m"),
    "a large float without exponent": (1e3, "1k"),
    "a float that JSON writes with an exponent": (1e21, "1e+21"),
    "a tiny float": (1e-7, "100e-9"),
    "zero": (0.0, "0"),
    "below zero": (-2.5, "-2500m"),
}  # fmt: skip


@pytest.mark.parametrize("number, canonical", NUMBERS.values(), ids=NUMBERS.keys())
def test_bare_numbers_are_parsed_as_their_json_text(number: float, canonical: str) -> None:
    assert str(parse_quantity(number)) == canonical


VALUES = {
    "whole": ("2", 2, 2000),
    "a little more is rounded up": ("1.0001", 2, 1001),
    "a little is one": ("1n", 1, 1),
    "below zero is rounded away from zero": ("-1.5", -2, -1500),
    "beyond int64 is the largest": ("1e30", MAX_INT64, MAX_INT64),
    "thousandths beyond int64 are the largest": ("1Ei", 2**60, MAX_INT64),
}  # fmt: skip


@pytest.mark.parametrize("text, value, milli_value", VALUES.values(), ids=VALUES.keys())
def test_values_are_rounded_up(text: str, value: int, milli_value: int) -> None:
    quantity = parse_quantity(text)
    assert (quantity.value, quantity.milli_value) == (value, milli_value)


def test_rounding_to_thousandths_keeps_the_text_of_exact_values() -> None:
    assert str(parse_quantity("1.500").rounded_up_to_milli()) == "1.500"
    assert str(parse_quantity("1.0005").rounded_up_to_milli()) == "1001m"


def test_a_sum_has_the_format_of_the_first_amount_that_is_not_zero() -> None:
    assert str(parse_quantity("1Gi") + parse_quantity("1G")) == "2073741824"
    assert str(ZERO + parse_quantity("1Gi")) == "1Gi"
    assert str(parse_quantity("1Gi") - parse_quantity("512Mi")) == "512Mi"
    assert (ZERO - parse_quantity("1e3")).format is Format.DECIMAL_EXPONENT


amounts = st.builds(
    lambda number, exponent, form: Quantity(number, exponent, form),
    st.integers(-(10**20), 10**20),
    st.integers(-9, 12),
    st.sampled_from(Format),
)


@given(amounts)
def test_formatted_quantities_parse_to_the_same_amount(amount: Quantity) -> None:
    again = parse_quantity(str(amount))
    capped = amount.format is Format.BINARY_SI and abs(amount.value) >= MAX_INT64
    assert again == amount or capped


@given(amounts, amounts)
def test_amounts_are_ordered_and_added_as_numbers(left: Quantity, right: Quantity) -> None:
    exact = [amount.unscaled * 10 ** (amount.exponent + 9) for amount in (left, right)]
    assert (left < right, left <= right, left == right) == (
        exact[0] < exact[1],
        exact[0] <= exact[1],
        exact[0] == exact[1],
    )
    assert (left > right, left >= right) == (exact[0] > exact[1], exact[0] >= exact[1])
    assert left + right - right == left
    assert (hash(left) == hash(right)) or left != right
