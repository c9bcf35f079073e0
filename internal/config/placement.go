package config

// Placing says where environments go, how large they are when a request does
// not say, and how much one owner may hold.
type Placing struct {
	Tries                int // hosts that one create asks at most
	CPUs, RamMB, DiskGB  int // of a request that names none
	QuotaEnvironments    int // of each owner; 0: no limit, as for the others
	QuotaCPUs            int
	QuotaMemoryMB        int
	QuotaDiskGB          int
	QuotaCreatesInFlight int
}

// maxQuota bounds a limit: more than any fleet has.
const maxQuota = 1 << 30

var placingSettings = []setting{
	{flag: "placement-tries", env: "ORCH_PLACEMENT_TRIES", def: "3", kind: kindNumber, usage: "hosts that one create asks at most, when they refuse for want of room",
		set: number(1, 100, func(s *Server, n int) { s.Placing.Tries = n })},
	{flag: "default-cpus", env: "ORCH_DEFAULT_CPUS", def: "1", kind: kindNumber, usage: "CPUs of an environment that names none",
		set: number(1, 256, func(s *Server, n int) { s.Placing.CPUs = n })},
	{flag: "default-ram-mb", env: "ORCH_DEFAULT_RAM_MB", def: "512", kind: kindNumber, usage: "memory of an environment that names none, in MiB",
		set: number(64, 4<<20, func(s *Server, n int) { s.Placing.RamMB = n })},
	{flag: "default-storage-gb", env: "ORCH_DEFAULT_STORAGE_GB", def: "4", kind: kindNumber, usage: "disk of an environment that names none, in GiB",
		set: number(1, 64<<10, func(s *Server, n int) { s.Placing.DiskGB = n })},
	{flag: "quota-environments", env: "ORCH_QUOTA_ENVIRONMENTS", def: "0", kind: kindNumber, usage: "environments that one owner may have at a time, unless fuse quota set says otherwise; 0: no limit",
		set: number(0, maxQuota, func(s *Server, n int) { s.Placing.QuotaEnvironments = n })},
	{flag: "quota-cpus", env: "ORCH_QUOTA_CPUS", def: "0", kind: kindNumber, usage: "the same for CPUs; 0: no limit",
		set: number(0, maxQuota, func(s *Server, n int) { s.Placing.QuotaCPUs = n })},
	{flag: "quota-memory-mb", env: "ORCH_QUOTA_MEMORY_MB", def: "0", kind: kindNumber, usage: "the same for memory of guests, in MiB; 0: no limit",
		set: number(0, maxQuota, func(s *Server, n int) { s.Placing.QuotaMemoryMB = n })},
	{flag: "quota-disk-gb", env: "ORCH_QUOTA_DISK_GB", def: "0", kind: kindNumber, usage: "the same for disk, in GiB; 0: no limit",
		set: number(0, maxQuota, func(s *Server, n int) { s.Placing.QuotaDiskGB = n })},
	{flag: "quota-creates", env: "ORCH_QUOTA_CREATES", def: "0", kind: kindNumber, usage: "creates in flight that one owner may have; 0: no limit",
		set: number(0, maxQuota, func(s *Server, n int) { s.Placing.QuotaCreatesInFlight = n })},
}
