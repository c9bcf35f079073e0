package playguard

import (
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/service"
)

func policyOf(in gen.ComposePolicy) (compose.Policy, error) {
	if in == nil {
		return nil, nil
	}
	out := compose.Policy{}
	for danger, verdict := range in {
		out[compose.Danger(danger)] = compose.Verdict(verdict)
	}
	if err := out.Validate(); err != nil {
		return nil, fleet.Invalid("policy", "refuse, warn or allow for each danger", "", "is not one: %s", err)
	}
	return out, nil
}

// wirePolicy names every danger, so that nobody has to know what is refused
// unsaid.
func wirePolicy(in compose.Policy) gen.ComposePolicy {
	out := gen.ComposePolicy{}
	for _, d := range compose.Dangers() {
		out[string(d)] = string(compose.Refuse)
		if v, ok := in[d]; ok {
			out[string(d)] = string(v)
		}
	}
	return out
}

func newMarqueeOf(in gen.AddMarquee) (service.NewMarquee, error) {
	policy, err := policyOf(in.Policy)
	if err != nil {
		return service.NewMarquee{}, err
	}
	out := service.NewMarquee{
		Name: in.Name, Hop: service.Hop{Address: in.Address, User: in.User, HostKey: in.HostKey},
		Key: []byte(in.Key), Agent: in.Agent, Root: in.Root, Policy: policy,
	}
	for _, j := range in.Jumps {
		out.Jumps = append(out.Jumps, service.Hop{Address: j.Address, User: j.User, HostKey: j.HostKey})
	}
	return out, nil
}

// fingerprint is how ssh prints a key; empty for what is none.
func fingerprint(line string) string {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return ""
	}
	return ssh.FingerprintSHA256(key)
}

// marqueeOf shows a marquee: all of it to those who run the fleet, and to
// others what they need to choose one.
func marqueeOf(m service.Marquee, all bool) gen.Marquee {
	out := gen.Marquee{ID: string(m.ID), Name: m.Name, Admin: string(m.Admin), Reach: string(m.Reach), Policy: wirePolicy(m.Policy), DefaultExpirySeconds: int64(m.DefaultExpiry / time.Second)}
	if !all {
		return out
	}
	out.Owner, out.Address, out.User, out.HostKey, out.Fingerprint = m.Owner, m.Address, m.User, m.HostKey, fingerprint(m.HostKey)
	out.Agent, out.HasKey, out.Root, out.CreatedAt = m.Agent, m.HasKey, m.Root, m.CreatedAt.UTC()
	for _, j := range m.Jumps {
		out.Jumps = append(out.Jumps, gen.SSHHop{Address: j.Address, User: j.User, HostKey: j.HostKey})
	}
	out.AdminWhy, out.ReachSince, out.Misses, out.Trouble = m.AdminWhy, m.ReachSince.UTC(), m.Misses, m.Trouble
	out.Identity = gen.MarqueeIdentity{
		Installation: string(m.Identity.Installation), MachineID: m.Identity.MachineID, DaemonID: m.Identity.DaemonID,
		DataRoot: m.Identity.DataRoot, Witness: m.Identity.Witness,
	}
	out.Epoch, out.Playgrounds, out.NextLook = int64(m.Epoch), m.Playgrounds, m.NextLook.UTC()
	if m.LastLook != nil {
		out.LastLook = lookOf(*m.LastLook)
	}
	for _, o := range m.Orphans {
		out.Orphans = append(out.Orphans, gen.MarqueeOrphan{Project: o.Project.String(), Why: o.Why})
	}
	return out
}

func lookOf(l service.LookReport) gen.MarqueeLook {
	return gen.MarqueeLook{
		At: l.At.UTC(), TookMs: float32(l.Took.Milliseconds()), Verdict: l.Verdict, Reason: l.Reason, Detail: l.Detail, Remedy: l.Remedy,
		Docker: l.Docker, Compose: l.Compose, Storage: l.Storage, DiskFree: int64(min(l.DiskFree, 1<<62)),
		Containers: l.Containers, Volumes: l.Volumes, Projects: l.Projects, HostEpoch: int64(l.HostEpoch), OddDirs: l.OddDirs,
	}
}

func upOf(in gen.UpPlayground) (service.UpRequest, error) {
	policy, err := policyOf(in.Policy)
	if err != nil {
		return service.UpRequest{}, err
	}
	out := service.UpRequest{
		Name: in.Name, Marquee: in.Marquee, Compose: in.Compose, Variables: in.Variables, Policy: policy,
		KeepVolumes: in.KeepVolumes, Pull: model.Pull(in.Pull), Plan: in.Plan, Expires: in.Expires,
	}
	for _, f := range in.Files {
		if f.Mode < 0 || f.Mode > 0o777 {
			return out, fleet.Invalid("files.mode", "0 to 0777", "", "of %.80q is %o", f.Path, f.Mode)
		}
		out.Files = append(out.Files, service.File{Path: f.Path, Mode: uint32(f.Mode), Data: f.Data})
	}
	return out, nil
}

func planOf(p service.Plan) gen.PlaygroundPlan {
	out := gen.PlaygroundPlan{
		Token: p.Token, New: p.New, ID: string(p.ID), Name: p.Name, Marquee: string(p.Marquee), MarqueeName: p.MarqueeAs,
		Project: p.Project.String(), State: string(p.State), Changes: make([]gen.PlaygroundChange, 0, len(p.Changes)),
		Unchanged: p.Unchanged, Volumes: p.Volumes, Files: p.Files, Warnings: p.Warnings, Refused: p.Refused,
	}
	for _, c := range p.Changes {
		out.Changes = append(out.Changes, gen.PlaygroundChange{What: c.What, Name: c.Name, Does: c.Does, Detail: c.Detail})
	}
	return out
}

func failureOf(f model.Failure) gen.PlaygroundFailure {
	return gen.PlaygroundFailure{Class: string(f.Class), Category: string(f.Category), Step: string(f.Step), Text: f.Text}
}

func playgroundOf(p service.Playground) gen.Playground {
	out := gen.Playground{
		ID: string(p.ID), Name: p.Name, Owner: p.Owner, Marquee: string(p.Marquee), Project: p.Project.String(),
		Intent: string(p.Intent), State: string(p.State), StateSince: p.StateSince.UTC(), Step: p.Step, Reason: p.Reason,
		Attention: string(p.Attention), KeepVolumes: p.KeepVolumes, Volumes: p.Volumes,
		Branch: branchOf(p.Source), Pull: string(p.Pull), Progress: p.Progress,
		Desired: p.Desired, Applied: p.Applied, AppliedAt: p.AppliedAt.UTC(), CreatedAt: p.CreatedAt.UTC(), UpdatedAt: p.UpdatedAt.UTC(),
	}
	for _, a := range p.Addresses {
		out.Addresses = append(out.Addresses, gen.PlaygroundAddress{Service: a.Service, Inside: a.Inside, Address: a.Address, Scope: a.Scope})
	}
	out.Trick = p.Trick != nil
	if !p.Expiry.IsZero() {
		out.ExpiresAt = p.Expiry.At.UTC()
		if ends := p.Expiry.Ends(model.DefaultPolicy()); ends.After(p.Expiry.At) {
			out.EndsAt = ends.UTC()
		}
	}
	if !p.Failure.IsZero() {
		out.Failure = failureOf(p.Failure)
	}
	for _, s := range p.Services {
		out.Services = append(out.Services, gen.PlaygroundService{Name: s.Name, Digest: s.Digest})
	}
	if r := p.LastRollout; r != nil {
		out.LastRollout = gen.PlaygroundRollout{At: r.At.UTC(), Digest: r.Digest, Result: r.Result}
		if !r.Failure.IsZero() {
			out.LastRollout.Failure = failureOf(r.Failure)
		}
	}
	return out
}

func explanationOf(e service.Explanation) gen.PlaygroundExplanation {
	out := gen.PlaygroundExplanation{
		Playground: playgroundOf(e.Playground), Condition: e.Condition, Dirt: e.Dirt, DirtWhy: e.DirtWhy,
		Next: append([]string{}, e.Next...),
	}
	if e.Look != nil {
		out.Look = lookOf(*e.Look)
	}
	for _, c := range e.Containers {
		out.Containers = append(out.Containers, gen.PlaygroundContainer{
			Service: c.Service, Name: c.Name, State: c.State, Health: c.Health, Exit: c.Exit, Outdated: c.Outdated,
		})
	}
	for _, d := range e.Decisions {
		out.Decisions = append(out.Decisions, gen.PlaygroundDecision{
			First: d.First.UTC(), Last: d.Last.UTC(), Count: d.Count, Verdict: d.Verdict, Rule: d.Rule, Act: d.Act,
			Guard: d.Guard, Why: d.Why, Epoch: int64(d.Epoch),
		})
	}
	return out
}
