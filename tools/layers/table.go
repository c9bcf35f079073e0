package main

// The layer table of the architecture, highest first. A package may import
// packages of lower rows. Within a row there are only siblings, and siblings
// never import each other: a service that needs another says so as a small
// interface and cmd connects them. A path covers itself and, with /..., what
// is below it; the longest match counts. Each entry is one unit: the packages
// that one entry covers may import each other.
var table = []layer{
	{name: "tests and tools", units: []string{"test/...", "tools/..."}, anything: true},
	{name: "cmd", units: []string{"cmd/fuse/...", "cmd/fused/..."}, anything: true},
	{name: "edge", units: []string{"internal/api/...", "internal/cli/...", "internal/bench/..."}},
	{name: "API client", units: []string{"internal/api/client/..."}},
	{name: "API contract", units: []string{"api/...", "internal/api/gen/..."}},
	{name: "services and the loop", units: []string{
		"internal/lifecycle", "internal/hosts", "internal/evacuation", "internal/join", "internal/snapshots", "internal/pausing", "internal/migrate", "internal/guestops",
		"internal/hitl", "internal/playguard/...", "internal/converge", "internal/idempotency", "internal/deadletters", "internal/reattach", "internal/webhooks",
		"internal/standby",
		"internal/images", "internal/usage", "internal/keys", "internal/rekey", "internal/rotation", "internal/amend",
	}},
	{name: "ends of lives", units: []string{"internal/ending", "internal/persist"}},
	{name: "admission", units: []string{"internal/admission"}},
	{name: "quotas", units: []string{"internal/quota"}},
	{name: "deciders", units: []string{
		"internal/schedule", "internal/reconcile", "internal/recovery", "internal/fusefile",
		"internal/playguard/decide", "internal/snapshots/decide", "internal/lifecycle/uploads",
	}, pure: true},
	{name: "Playguard's observation", units: []string{"internal/playguard/observe"}, pure: true},
	{name: "Playguard's vocabulary", units: []string{"internal/playguard/model"}, pure: true},

	// What Playguard decides about, and with what words. They see only what
	// they are given, as deciders do.
	{name: "playguard looks", units: []string{"internal/playguard/observe"}, pure: true},
	{name: "playguard vocabulary", units: []string{"internal/playguard/model"}, pure: true},

	{name: "suites", units: []string{"internal/store/storetest", "internal/store/postgres/pgtest", "internal/provider/providertest", "internal/hostd/driver/drivertest", "internal/hostd/image/imagetest", "internal/playguard/sshx/sshdtest", "internal/playguard/dockertest"}, testing: true},

	// Adapters implement a port. cmd wires them; tests use them; nobody else
	// knows that they exist.
	{name: "adapters", units: []string{
		"internal/store/memory", "internal/store/sqlite", "internal/store/postgres",
		"internal/provider/remote", "internal/provider/fake",
		"internal/hostd/qemu", "internal/hostd/sim", "internal/hostd/firecracker",
	}, adapters: true},

	{name: "what journals store of a row", units: []string{"internal/store/rows/..."}},
	{name: "owner", units: []string{"internal/state/..."}},
	{name: "host and guest agents", units: []string{"internal/hostd", "internal/guestd/..."}},
	{name: "host agent's parts", units: []string{"internal/hostd/probe", "internal/hostd/imagerpc", "internal/hostd/kept", "internal/hostd/ports", "internal/hostd/portrpc/...", "internal/hostd/bounds", "internal/hostd/room", "internal/hostd/doctor", "internal/hostd/capture/..."}},
	{name: "host agent's service of captures", units: []string{"internal/hostd/snaprpc"}},
	{name: "how machines come up", units: []string{"internal/hostd/raise"}},
	{name: "golden captures", units: []string{"internal/hostd/golden"}},
	{name: "host agent's machines", units: []string{"internal/hostd/vmm/...", "internal/hostd/svcdisk", "internal/hostd/thaw", "internal/hostd/snapstore", "internal/hostd/admit", "internal/hostd/entry", "internal/hostd/refusal"}},
	{name: "host agent's tools", units: []string{
		"internal/hostd/network", "internal/hostd/console", "internal/hostd/image/...", "internal/hostd/cgroup", "internal/hostd/disk", "internal/hostd/guestmem", "internal/hostd/qmp", "internal/hostd/proc", "internal/hostd/tsc",
		"internal/hostd/driver", "internal/hostd/journal", "internal/hostd/fence", "internal/hostd/ops", "internal/hostd/identity",
		"internal/hostd/rpc", "internal/hostd/hostmetrics", "internal/hostd/health", "internal/hostd/join",
	}},
	{name: "configuration", units: []string{"internal/config"}},
	{name: "ports and helpers", units: []string{
		"internal/provider", "internal/egress", "internal/ingress", "internal/events", "internal/auth",
		"internal/metrics", "internal/tracing", "internal/secrets", "internal/simguest", "internal/lease", "internal/services",
	}},
	{name: "private protocols", units: []string{"internal/hostwire/...", "internal/guestwire/..."}},
	{name: "vocabulary", units: []string{"internal/fleet"}, stdlib: true},
	{name: "leaves", units: []string{"internal/attachframe", "internal/diskspace", "internal/durable", "internal/failpoint", "internal/keylock", "internal/rooted", "internal/sshkey", "internal/tailbuf", "internal/uid", "internal/simguest"}},
	{name: "test kit", units: []string{"internal/testkit", "internal/tracing/tracetest"}, testing: true},
}

// never lists what a package must not reach even through others.
var never = []ban{
	{from: []string{"internal/hostd/...", "internal/guestd/...", "cmd/fused"}, what: []string{
		"internal/state", "internal/store/...", "internal/api/...", "internal/cli/...",
		"internal/lifecycle", "internal/hosts", "internal/snapshots", "internal/migrate", "internal/guestops",
		"internal/hitl", "internal/playguard/...", "internal/converge",
	}, why: "the far side knows nothing of the control plane"},
	{from: []string{"cmd/fused", "internal/guestd/..."}, what: []string{
		"internal/hostd/...", "internal/hostwire/...", "internal/provider/...",
	}, why: "the guest agent knows nothing of its host"},
	{from: []string{"internal/schedule", "internal/reconcile", "internal/recovery", "internal/fusefile", "internal/playguard/decide"}, what: []string{
		"internal/store/...", "internal/hostwire/...", "internal/guestwire/...", "internal/hostd/...",
	}, why: "deciders decide; others act"},
	{from: []string{"internal/playguard/..."}, what: []string{
		"internal/lifecycle", "internal/hosts", "internal/snapshots", "internal/migrate", "internal/guestops",
		"internal/hitl", "internal/converge", "internal/provider/...", "internal/hostwire/...", "internal/guestwire/...",
		"internal/hostd/...", "internal/schedule", "internal/reconcile", "internal/recovery",
	}, why: "Playguard imports none of the VM services"},
}

// impure is what a decider must not import: each would let it look at
// something other than its input.
var impure = map[string]bool{
	"context": true, "log": true, "log/slog": true, "os": true, "sync": true, "net": true, "net/http": true,
	"math/rand": true, "math/rand/v2": true, "crypto/rand": true, "database/sql": true, "os/exec": true,
	"sync/atomic": true, "testing/synctest": true,
}

// clockFuncs are the functions of package time that read or wait on a clock.
var clockFuncs = map[string]bool{
	"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
	"Tick": true, "NewTimer": true, "NewTicker": true,
}
