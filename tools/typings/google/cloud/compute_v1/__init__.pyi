"""What this package uses of Google's client of Compute Engine: the fields that it reads, the methods that it calls.

Google's own annotations name types that no checker finds. Here they are, and tests/cloud/test_typings.py compares each
with Google's own messages and clients: a field that Google does not have, or has with another type, fails there.
"""

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from enum import Enum
from typing import Any, Generic, TypeVar

class Message:
    def __init__(self, mapping: Mapping[str, Any] | None = None, **fields: Any) -> None: ...
    def __contains__(self, field: str) -> bool: ...

# What exists in a project

class Instance(Message):
    name: str
    id: int
    zone: str
    status: str
    machine_type: str
    creation_timestamp: str
    last_start_timestamp: str
    labels: MutableMapping[str, str]
    network_interfaces: MutableSequence[NetworkInterface]
    scheduling: Scheduling
    metadata: Metadata
    resource_status: ResourceStatus
    disks: MutableSequence[AttachedDisk]

class AttachedDisk(Message):
    type_: str

class NetworkInterface(Message):
    network_i_p: str
    access_configs: MutableSequence[AccessConfig]

class AccessConfig(Message):
    nat_i_p: str

class Scheduling(Message):
    preemptible: bool
    provisioning_model: str
    termination_time: str
    instance_termination_action: str
    max_run_duration: Duration

class Duration(Message):
    seconds: int

class ResourceStatus(Message):
    scheduling: ResourceStatusScheduling

class ResourceStatusScheduling(Message):
    termination_timestamp: str

class Metadata(Message):
    fingerprint: str
    items: MutableSequence[Items]

class Items(Message):
    key: str
    value: str

class Disk(Message):
    name: str
    zone: str
    labels: MutableMapping[str, str]

class Image(Message):
    name: str
    id: int
    family: str
    status: str
    creation_timestamp: str
    disk_size_gb: int
    archive_size_bytes: int
    labels: MutableMapping[str, str]

class Firewall(Message):
    name: str
    description: str
    creation_timestamp: str
    direction: str
    network: str
    priority: int
    disabled: bool
    allowed: MutableSequence[Allowed]
    denied: MutableSequence[Denied]
    source_ranges: MutableSequence[str]
    source_tags: MutableSequence[str]
    source_service_accounts: MutableSequence[str]
    target_tags: MutableSequence[str]
    target_service_accounts: MutableSequence[str]
    destination_ranges: MutableSequence[str]

class Allowed(Message):
    I_p_protocol: str
    ports: MutableSequence[str]

class Denied(Message):
    I_p_protocol: str
    ports: MutableSequence[str]

class Network(Message):
    auto_create_subnetworks: bool
    subnetworks: MutableSequence[str]

class Subnetwork(Message):
    name: str
    private_ip_google_access: bool

class Router(Message):
    network: str
    nats: MutableSequence[RouterNat]

class RouterNat(Message):
    source_subnetwork_ip_ranges_to_nat: str
    subnetworks: MutableSequence[RouterNatSubnetworkToNat]

class RouterNatSubnetworkToNat(Message):
    name: str

# What a project may use

class Project(Message):
    default_service_account: str
    common_instance_metadata: Metadata
    quotas: MutableSequence[Quota]

class Quota(Message):
    metric: str
    limit: float
    usage: float

class Region(Message):
    quotas: MutableSequence[Quota]

class Zone(Message):
    status: str

class MachineType(Message):
    name: str
    deprecated: DeprecationStatus

class AcceleratorType(Message):
    name: str
    deprecated: DeprecationStatus

class DeprecationStatus(Message):
    state: str
    obsolete: str
    deleted: str
    replacement: str

# What becomes of a request

class Operation(Message):
    class Status(Enum):
        DONE = ...

    name: str
    operation_type: str
    operation_group_id: str
    status: Status
    status_message: str
    target_id: int
    target_link: str
    insert_time: str
    end_time: str
    http_error_status_code: int
    http_error_message: str
    error: Error

class Error(Message):
    errors: MutableSequence[Errors]

class Errors(Message):
    code: str
    message: str
    error_details: MutableSequence[ErrorDetails]

class ErrorDetails(Message):
    error_info: ErrorInfo
    localized_message: LocalizedMessage
    quota_info: QuotaExceededInfo

class ErrorInfo(Message):
    metadatas: MutableMapping[str, str]

class LocalizedMessage(Message):
    message: str

class QuotaExceededInfo(Message):
    metric_name: str

# Other answers

class GuestAttributes(Message):
    query_value: GuestAttributesValue

class GuestAttributesValue(Message):
    items: MutableSequence[GuestAttributesEntry]

class GuestAttributesEntry(Message):
    key: str
    value: str

class SerialPortOutput(Message):
    contents: str

class OperationList(Message):
    items: MutableSequence[Operation]

class InstancesScopedList(Message):
    instances: MutableSequence[Instance]

class DisksScopedList(Message):
    disks: MutableSequence[Disk]

class AcceleratorTypesScopedList(Message):
    accelerator_types: MutableSequence[AcceleratorType]

class MachineTypesScopedList(Message):
    machine_types: MutableSequence[MachineType]

# Requests

class AggregatedListDisksRequest(Message): ...
class AggregatedListInstancesRequest(Message): ...
class BulkInsertInstanceRequest(Message): ...
class BulkInsertInstanceResource(Message): ...
class DeleteImageRequest(Message): ...
class DeleteInstanceRequest(Message): ...
class GetGuestAttributesInstanceRequest(Message): ...
class GetSerialPortOutputInstanceRequest(Message): ...
class InsertImageRequest(Message): ...
class InsertInstanceRequest(Message): ...
class InstanceProperties(Message): ...
class ListFirewallsRequest(Message): ...
class ListImagesRequest(Message): ...
class ListZoneOperationsRequest(Message): ...
class SimulateMaintenanceEventInstanceRequest(Message): ...

class StopInstanceRequest(Message):
    discard_local_ssd: bool

class StartInstanceRequest(Message): ...
class SetMachineTypeInstanceRequest(Message): ...
class SetSchedulingInstanceRequest(Message): ...

# Clients: a method takes a request, or its fields

_Found = TypeVar("_Found")
_Page = TypeVar("_Page")
_Request = Message | Mapping[str, Any] | None

class Pager(Generic[_Found, _Page]):
    """What a list answers: it asks for the next page by itself."""

    pages: Iterator[_Page]
    def __iter__(self) -> Iterator[_Found]: ...

class _Client:
    transport: Any
    def __init__(self, *, credentials: Any = None, client_options: Mapping[str, Any] | None = None) -> None: ...

class InstancesClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Instance: ...
    def aggregated_list(
        self, request: _Request = None, /, **fields: Any
    ) -> Pager[tuple[str, InstancesScopedList], Message]: ...
    def insert_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def bulk_insert_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def delete_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def stop_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def start_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def set_machine_type_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def set_scheduling_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def simulate_maintenance_event_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def set_metadata_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def get_guest_attributes(self, request: _Request = None, /, **fields: Any) -> GuestAttributes: ...
    def get_serial_port_output(self, request: _Request = None, /, **fields: Any) -> SerialPortOutput: ...

class ZoneOperationsClient(_Client):
    def list(self, request: _Request = None, /, **fields: Any) -> Pager[Operation, OperationList]: ...
    def wait(self, request: _Request = None, /, **fields: Any) -> Operation: ...

class GlobalOperationsClient(_Client):
    def wait(self, request: _Request = None, /, **fields: Any) -> Operation: ...

class ProjectsClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Project: ...

class RegionsClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Region: ...

class ZonesClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Zone: ...

class MachineTypesClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> MachineType: ...
    def aggregated_list(
        self, request: _Request = None, /, **fields: Any
    ) -> Pager[tuple[str, MachineTypesScopedList], Message]: ...

class AcceleratorTypesClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> AcceleratorType: ...
    def aggregated_list(
        self, request: _Request = None, /, **fields: Any
    ) -> Pager[tuple[str, AcceleratorTypesScopedList], Message]: ...

class DisksClient(_Client):
    def aggregated_list(
        self, request: _Request = None, /, **fields: Any
    ) -> Pager[tuple[str, DisksScopedList], Message]: ...

class ImagesClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Image: ...
    def get_from_family(self, request: _Request = None, /, **fields: Any) -> Image: ...
    def list(self, request: _Request = None, /, **fields: Any) -> Pager[Image, Message]: ...
    def insert_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def delete_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...

class NetworksClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Network: ...

class SubnetworksClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Subnetwork: ...

class RoutersClient(_Client):
    def list(self, request: _Request = None, /, **fields: Any) -> Pager[Router, Message]: ...

class FirewallsClient(_Client):
    def get(self, request: _Request = None, /, **fields: Any) -> Firewall: ...
    def list(self, request: _Request = None, /, **fields: Any) -> Pager[Firewall, Message]: ...
    def insert_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def update_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
    def delete_unary(self, request: _Request = None, /, **fields: Any) -> Operation: ...
