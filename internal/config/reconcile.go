package config

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Reconcile are the limits of the reconcile loop; 0 turns what it limits off,
// and for a budget means no limit.
type Reconcile struct {
	MaxRuntime           time.Duration // of environments that name none
	IdleTimeout          time.Duration // the same
	OrphanTries          int
	MaxDestroyPerCycle   int
	MaxDestroyPerHour    int
	SnapshotRetention    time.Duration
	SnapshotQuotaCount   int // of each tenant
	SnapshotQuotaMB      int // the same
	ArtifactIdleTTL      time.Duration
	ArtifactMaxPerTenant int
}

// maxCount bounds limits that are numbers.
const maxCount = 1_000_000

// durationOrOff takes 0 for off.
func durationOrOff(field func(*Reconcile) *time.Duration) func(*Server, string) error {
	return func(s *Server, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%q is no duration such as 30m or 2h", v)
		}
		if d < 0 {
			return errors.New("is less than zero; 0 turns it off")
		}
		*field(&s.Reconcile) = d
		return nil
	}
}

// countOrOff takes 0 for off.
func countOrOff(field func(*Reconcile) *int) func(*Server, string) error {
	return func(s *Server, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > maxCount {
			return fmt.Errorf("%q is not within 0 to %d; 0 turns it off", v, maxCount)
		}
		*field(&s.Reconcile) = n
		return nil
	}
}

// reconcileSettings are the seed's limits with its values (semantics: an
// upgrade never starts deleting), and the budgets.
var reconcileSettings = []setting{
	{flag: "default-max-runtime", env: "ORCH_DEFAULT_MAX_RUNTIME", def: "2h0m0s", kind: kindDuration, usage: "age at which an environment with a task is ended unless it names its own; 0: never",
		set: durationOrOff(func(r *Reconcile) *time.Duration { return &r.MaxRuntime })},
	{flag: "default-idle-timeout", env: "ORCH_DEFAULT_IDLE_TIMEOUT", def: "0s", kind: kindDuration, usage: "time without use after which an environment is ended unless it names its own; 0: never",
		set: durationOrOff(func(r *Reconcile) *time.Duration { return &r.IdleTimeout })},
	{flag: "orphan-tries", env: "ORCH_ORPHAN_TRIES", def: "5", kind: kindNumber, usage: "tries to destroy a VM that nobody tracks before it is given up; 0: such VMs are left",
		set: countOrOff(func(r *Reconcile) *int { return &r.OrphanTries })},
	{flag: "max-destroy-per-cycle", env: "ORCH_MAX_DESTROY_PER_CYCLE", def: "100", kind: kindNumber, usage: "most destructions that one pass begins on one host in a cycle; 0: no limit",
		set: countOrOff(func(r *Reconcile) *int { return &r.MaxDestroyPerCycle })},
	{flag: "max-destroy-per-hour", env: "ORCH_MAX_DESTROY_PER_HOUR", def: "1000", kind: kindNumber, usage: "the same within any hour; 0: no limit",
		set: countOrOff(func(r *Reconcile) *int { return &r.MaxDestroyPerHour })},
	{flag: "snapshot-retention", env: "ORCH_SNAPSHOT_RETENTION", def: "0s", kind: kindDuration, usage: "how long snapshots are kept that name no time; 0: for ever",
		set: durationOrOff(func(r *Reconcile) *time.Duration { return &r.SnapshotRetention })},
	{flag: "snapshot-quota-count", env: "ORCH_SNAPSHOT_QUOTA_COUNT", def: "0", kind: kindNumber, usage: "snapshots that one tenant keeps at most; 0: no limit",
		set: countOrOff(func(r *Reconcile) *int { return &r.SnapshotQuotaCount })},
	{flag: "snapshot-quota-mb", env: "ORCH_SNAPSHOT_QUOTA_MB", def: "0", kind: kindNumber, usage: "MiB that the snapshots of one tenant take at most; 0: no limit",
		set: number(0, maxQuota, func(s *Server, n int) { s.Reconcile.SnapshotQuotaMB = n })},
	{flag: "artifact-idle-ttl", env: "ORCH_ARTIFACT_IDLE_TTL_SECONDS", def: "0s", kind: kindDuration, usage: "how long a layer artifact is kept that nobody uses; 0: for ever",
		set: durationOrOff(func(r *Reconcile) *time.Duration { return &r.ArtifactIdleTTL })},
	{flag: "artifact-max-per-tenant", env: "ORCH_ARTIFACT_MAX_PER_TENANT", def: "0", kind: kindNumber, usage: "most layer artifacts that a tenant keeps, the least recently used go; 0: all",
		set: countOrOff(func(r *Reconcile) *int { return &r.ArtifactMaxPerTenant })},
}
