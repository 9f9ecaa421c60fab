"""Kinds of `normbench.measurements`, in one forward pass of each requested network."""

import sys

from normbench.errors import BadInput, Impossible
from normbench.measurements import measurement
from normbench.measurements.power import set_eps
from normbench.probe.networks import (
    ProbedNetwork,
    input_images,
    requested_networks,
    use_all_cores,
)
from normbench.probe.output import print_table, write_results, write_run_results
from normbench.probe.request import ProbeRequest
from normbench.records.probes import Record
from normbench.training.hardware import autocast_context


def run(request: ProbeRequest) -> None:
    """Measure every requested network; print a summary and write the records.

    Raises:
        BadInput: no network can be measured.
    """
    records: list[Record] = []
    refusals: dict[str, None] = {}  # one line for all epochs of a run
    use_all_cores()
    networks = requested_networks(request)
    for number, network in enumerate(networks, 1):
        at = "" if network.epoch is None else f" after epoch {network.epoch}"
        print(f"{number} of {len(networks)}: {network.label}{at}", file=sys.stderr, flush=True)
        try:
            records += _measure(request, network)
        except Impossible as reason:
            line = str(reason).partition("\n")[0]  # torch.fx appends the place in the graph
            refusals[f"{network.label} is n/a: {line}"] = None
    if not records:
        raise BadInput("; ".join(refusals))
    print("\n".join(refusals))
    runs = {network.run.row.id: network.run for network in networks if network.run is not None}
    for id_, trained in runs.items():
        if of_run := [record for record in records if record.get("run") == id_]:
            write_run_results(request, trained, of_run)
    print_table(measurement(request.kind).table(records), measurement(request.kind).HEAD)
    write_results(request, records)


def _measure(request: ProbeRequest, network: ProbedNetwork) -> list[Record]:
    options = request.options
    module = network.build()
    if request.kind == "power" and options.eps is not None and not set_eps(module, options.eps):
        raise Impossible(f"eps={options.eps:g}: no layer of this network has an eps")
    images = input_images(options, network)
    with autocast_context(network.cell, network.device):
        records = measurement(request.kind).measure(module, images, options.statistics)
    return [{**network.columns, **record} for record in records]
