from pathlib import Path

import pytest
from project import put
from recordings import plant

from epochmeter.machine.recorded.identifiers import Identifiers, find_identifiers, without_network


@pytest.mark.parametrize(
    "text",
    [
        "0000:01:00.0", "pci0000:00/0000:00:01.0", "535.104.05", "5.15.148-tegra", "intel-rapl:0:0", "12:34:56",
        "bus@0/13e00000.host1x", "ina3221@40", "nvidia,p3768-0000+p3767-0005", "1-0040", "-5000", "12V", "::1", "0:25",
        "127.0.0.1", "96.00.89.00.01", "1652188021414866 us", "card0-DP-1", "", "ffffffff,ffffffff", "serial0",
        "/media/sd", "/media/hdd_usb/cifar10 ext4",
        "MODE_15W_2CORE (id:0)", "ff" * 15, "0" * 32, "L4T 36.4.3", "a.b.c", "eth0", "mmcblk0p1",
    ],
)  # fmt: skip
def test_other_texts_are_unchanged(text):
    assert Identifiers({}).replace(text) == text


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("GPU-12345678-1234-1234-1234-123456789abc", "GPU-00000000-0000-0000-0000-000000000001"),
        ("at 00:1b:44:11:3a:b7,", "at 02:00:00:00:00:01,"),
        ("80:00:00:48:fe:80:00:00:00:00:00:00:e4:1d", "02:00:00:00:00:01"),
        ("enx001b44113ab7: 1", "enx020000000001: 1"),
        ("10.1.2.3:2049", "192.0.2.1:2049"),
        ("fe80::1ff:fe23:4567:890a", "192.0.2.1"),
        ("2001:db8:1::2/64", "192.0.2.1/64"),
        ("/home/maria/data", "/home/user1/data"),
        ("/media/maria/disk", "/media/user1/disk"),
        ("/media/sdmaria", "/media/user1"),
        ("/home/sd", "/home/user1"),
        ("maria@example.org", "user1"),
        ("naa.5000c500a1b2c3d4", "naa.serial1"),
        ("9f86d081884c7d659a2feaa0c55ad015", f"{1:032}"),
        ("Serial\t\t: 100000003f4a2b1c", "Serial\t\t: serial1"),
        ("    Serial Number                  : 1652321012345", "    Serial Number                  : serial1"),
        ("    GPU PDI                        : 0x7e4f9c1a2b3c4d5e", "    GPU PDI                        : serial1"),
        ("    Serial Number                  : N/A", "    Serial Number                  : N/A"),
    ],
)
def test_identifier_is_found_by_its_form(text, replaced):
    identifiers = Identifiers({})
    assert identifiers.replace(text) == replaced
    assert identifiers.replace(text) == replaced, "always by the same"
    assert identifiers.replace(replaced) == replaced, "a replaced one is no identifier"


def test_same_identifier_has_the_same_replacement_and_another_one_another():
    replaced = Identifiers({}).replace("/home/maria 10.0.0.7 /home/josef 10.0.0.8 /home/maria 10.0.0.7")
    assert replaced == "/home/user1 192.0.2.1 /home/user2 192.0.2.2 /home/user1 192.0.2.1"


def test_names_that_are_words_are_replaced_only_after_home(tmp_path):
    root = put(tmp_path, {
        "proc/sys/kernel/hostname": "nano\n", "etc/passwd": "nvidia:x:1000:1000::/home/nvidia:/bin/sh\n",
        "sys/firmware/devicetree/base/compatible": "nvidia,jetson-nano\0nvidia,tegra210\0",
    })  # fmt: skip
    identifiers = find_identifiers(root)
    compatible = b"nvidia,jetson-nano\0nvidia,tegra210\0"
    assert identifiers.replace_content("sys/firmware/devicetree/base/compatible", compatible) == compatible
    assert identifiers.replace("/home/nvidia/x") == "/home/user1/x"
    assert identifiers.replace_content("proc/sys/kernel/hostname", b"nano\n") == b"host1\n"


def test_names_of_a_product_are_not_those_of_its_host(tmp_path):
    root = put(tmp_path, {
        "proc/sys/kernel/hostname": "agx-special\n",
        "sys/firmware/devicetree/base/compatible": "vendor,agx-special\0",
    })  # fmt: skip
    assert find_identifiers(root).replace("vendor,agx-special") == "vendor,agx-special"


def test_numbers_of_a_sensor_are_unchanged_also_if_they_are_a_serial_number(tmp_path):
    root = put(tmp_path, {"sys/class/dmi/id/product_serial": "4812345\n"})
    identifiers = find_identifiers(root)
    assert identifiers.replace_content("sys/class/hwmon/hwmon0/power1_input", b"4812345\n") == b"4812345\n"
    assert identifiers.replace("serial of 4812345") == "serial of serial1"


def test_bytes_that_are_no_text_are_unchanged():
    content = bytes(range(256))
    assert Identifiers({}).replace_content("sys/x", content) == content


def test_file_systems_of_a_network_are_only_counted():
    assert without_network("23 22 0:42 / /mnt/project rw - nfs4 filer:/x rw,addr=10.0.0.7") == (
        "23 22 0:42 / /mnt/network rw - nfs4 network rw"
    )
    assert without_network("filer:/x /mnt/project nfs rw 0 0") == "network /mnt/network nfs rw 0 0"
    for line in ("22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw", "/dev/nvme0n1p2 / ext4 rw 0 0", ""):
        assert without_network(line) == line


def test_ids_of_an_amd_gpu_keep_their_relation(tmp_path):
    unique = 0x1F25E6FA38FDC9E1
    root = put(plant(tmp_path), {
        "sys/class/drm/card0/device/unique_id": f"{unique:016x}\n",
        "sys/class/kfd/kfd/topology/nodes/1/properties": f"simd_count 8\nunique_id {unique}\n",
    })  # fmt: skip
    identifiers = find_identifiers(Path(root))
    assert identifiers.replace_content("unique_id", f"{unique:016x}\n".encode()) == b"0000000000000001\n"
    assert identifiers.replace(f"unique_id {unique}\n") == "unique_id 1\n"
