"""Nobody but those of the address reaches the place where a group of processes meets."""

import os

import psutil

from ajet.core.net.rendezvous import join, listen


def test_a_store_listens_at_its_address_alone():
    store = listen("127.0.0.1", 0, 2, 10.0)
    listening = {
        each.laddr
        for each in psutil.Process(os.getpid()).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == store.port
    }
    assert {each.ip for each in listening} == {"127.0.0.1"}


def test_a_joining_process_reads_the_values_of_the_first_one():
    store = listen("127.0.0.1", 0, 2, 10.0)
    store.set("greeting", "hello")
    assert join("127.0.0.1", store.port, 2, 10.0).get("greeting") == b"hello"
