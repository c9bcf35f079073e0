package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
)

// appendEnvironment appends what encoding/json makes of env, an order of
// magnitude cheaper: a listing of a large fleet encodes every row, which is
// cheap enough to keep none of it. A test holds the two to each other.
func appendEnvironment(b []byte, env *gen.Environment) []byte {
	o := object{b: append(b, '{')}
	o.text("id", env.ID)
	o.text("uid", env.UID)
	o.text("state", env.State)
	o.text("task_id", env.TaskID)
	o.text("owner", env.Owner)
	o.optional("host_id", env.HostID)
	o.text("url", env.URL)
	o.key("spec")
	o.b = appendSpec(o.b, &env.Spec)
	o.optional("error", env.Error)
	if r := env.Reason; r != nil {
		o.key("reason")
		in := object{b: append(o.b, '{')}
		in.text("actor", r.Actor)
		in.text("rule", r.Rule)
		in.optional("evidence", r.Evidence)
		o.b = append(in.b, '}')
	}
	if len(env.Endpoints) > 0 {
		o.key("endpoints")
		o.b = appendEndpoints(o.b, env.Endpoints)
	}
	o.optional("image_digest", env.ImageDigest)
	if env.Boot != nil {
		o.key("boot")
		o.b = appendBoot(o.b, env.Boot)
	}
	appendStanding(&o, env)
	if p := env.Placement; p != nil {
		o.key("placement")
		in := object{b: append(o.b, '{')}
		in.text("host_id", p.HostID)
		in.text("policy", p.Policy)
		in.number("candidates", int64(p.Candidates))
		in.number("headroom_cpus", int64(p.HeadroomCPUs))
		in.number("headroom_ram_mb", int64(p.HeadroomRAMMB))
		in.nonZero("tries", int64(p.Tries))
		o.b = append(in.b, '}')
	}
	if h := env.Health; h != nil {
		o.key("health")
		in := object{b: append(o.b, '{')}
		in.text("state", h.State)
		in.time("since", h.Since)
		in.nonZero("failures", int64(h.Failures))
		in.optional("message", h.Message)
		o.b = append(in.b, '}')
	}
	o.optional("drain_result", env.DrainResult)
	if !env.HostUnreachableSince.IsZero() {
		o.time("host_unreachable_since", env.HostUnreachableSince)
	}
	o.optional("host_unreachable_reason", env.HostUnreachableReason)
	if env.Unverified {
		o.key("unverified")
		o.b = append(o.b, "true"...)
	}
	o.time("created_at", env.CreatedAt)
	o.time("updated_at", env.UpdatedAt)
	return append(o.b, '}')
}

func appendSpec(b []byte, s *gen.Spec) []byte {
	o := object{b: append(b, '{')}
	o.nonZero("cpus", int64(s.CPUs))
	o.nonZero("ram_mb", int64(s.RAMMB))
	o.nonZero("storage_gb", int64(s.StorageGB))
	o.optional("region", s.Region)
	o.optional("arch", s.Arch)
	o.nonZero("max_runtime_seconds", s.MaxRuntimeSeconds)
	o.nonZero("idle_timeout_seconds", s.IdleTimeoutSeconds)
	o.optional("on_idle", s.OnIdle)
	o.optional("image", s.Image)
	o.nonZero("gpus", int64(s.GPUs))
	o.optional("gpu_kind", s.GPUKind)
	o.optional("gpu_profile", s.GPUProfile)
	o.optional("host_id", s.HostID)
	o.texts("labels", s.Labels)
	o.texts("tags", s.Tags)
	if s.HugePages {
		o.key("huge_pages")
		o.b = append(o.b, "true"...)
	}
	o.limits(s)
	return append(o.b, '}')
}

func appendEndpoints(b []byte, endpoints []gen.Endpoint) []byte {
	b = append(b, '[')
	for i := range endpoints {
		if i > 0 {
			b = append(b, ',')
		}
		o := object{b: append(b, '{')}
		o.optional("as", endpoints[i].As)
		o.text("url", endpoints[i].URL)
		o.number("port", int64(endpoints[i].Port))
		o.optional("protocol", endpoints[i].Protocol)
		b = append(o.b, '}')
	}
	return append(b, ']')
}

func appendBoot(b []byte, boot *gen.Boot) []byte {
	o := object{b: append(b, '{')}
	o.optional("mode", boot.Mode)
	if len(boot.Steps) > 0 {
		o.key("steps")
		o.b = append(o.b, '[')
		for i := range boot.Steps {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			in := object{b: append(o.b, '{')}
			in.text("step", boot.Steps[i].Step)
			in.key("took_ms")
			in.b = appendMs(in.b, boot.Steps[i].TookMs)
			o.b = append(in.b, '}')
		}
		o.b = append(o.b, ']')
	}
	return append(o.b, '}')
}

// object appends the members of one JSON object.
type object struct{ b []byte }

// key begins a member. k is a constant that needs no escape.
func (o *object) key(k string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, k...)
	o.b = append(o.b, '"', ':')
}

// quoted is text with a key that anybody may have chosen.
func (o *object) quoted(k, v string) {
	o.key("")
	o.b = append(appendString(o.b[:len(o.b)-3], k), ':')
	o.b = appendString(o.b, v)
}

// texts adds a map, by key; an empty one is left out.
func (o *object) texts(k string, m map[string]string) {
	if len(m) == 0 {
		return
	}
	o.key(k)
	in := object{b: append(o.b, '{')}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		in.quoted(k, m[k])
	}
	o.b = append(in.b, '}')
}

func (o *object) text(k, v string) {
	o.key(k)
	o.b = appendString(o.b, v)
}

func (o *object) optional(k, v string) {
	if v != "" {
		o.text(k, v)
	}
}

func (o *object) number(k string, n int64) {
	o.key(k)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *object) nonZero(k string, n int64) {
	if n != 0 {
		o.number(k, n)
	}
}

func (o *object) time(k string, t time.Time) {
	o.key(k)
	o.b = append(t.AppendFormat(append(o.b, '"'), time.RFC3339Nano), '"')
}

// appendString quotes s. Text that needs no escape, which is nearly all, is
// copied.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if escaped[s[i]] {
			raw, err := json.Marshal(s)
			if err != nil {
				raw = []byte(`""`) // a string always encodes
			}
			return append(b, raw...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// escaped are the bytes that a JSON string cannot hold as they are, or that
// encoding/json does not leave as they are.
var escaped = func() (table [256]bool) {
	for c := range table {
		table[c] = c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&'
	}
	return table
}()

// appendMs writes milliseconds. Whole microseconds, which all our times are,
// take a tenth of the time that a float does.
func appendMs(b []byte, ms float64) []byte {
	us := int64(ms * 1000)
	for _, n := range [...]int64{us, us + 1} { // the product may be a bit too small
		if n < 0 || n > 1<<50 || float64(n)/1000 != ms { //nolint:mnd // far within what a float64 tells apart
			continue
		}
		b = strconv.AppendInt(b, n/1000, 10)
		if rest := n % 1000; rest != 0 {
			b = append(b, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
			for b[len(b)-1] == '0' {
				b = b[:len(b)-1]
			}
		}
		return b
	}
	return strconv.AppendFloat(b, ms, 'f', -1, 64)
}
