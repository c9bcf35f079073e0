package placing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/schedule"
)

// Desk runs placements dry.
type Desk interface {
	Explain(ctx context.Context, r admission.Request) (admission.Explanation, error)
}

// Specs fills in what a spec leaves out and refuses what no host could make.
type Specs interface {
	CheckSpec(spec fleet.Spec) (fleet.Spec, error)
}

type explainer struct {
	desk  Desk
	specs Specs
}

// ExplainRoutes are the routes of placements run dry.
func ExplainRoutes(desk Desk, specs Specs) []web.Route {
	s := explainer{desk, specs}
	return []web.Route{{Method: http.MethodPost, Pattern: "/v1/schedule/explain", BodyLimit: web.BodyLimit, Handle: s.explain}}
}

func (s explainer) explain(w http.ResponseWriter, r *web.Request) error {
	var body gen.ExplainSchedule
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	spec, err := s.specs.CheckSpec(fleet.Spec{
		CPUs: int(body.Spec.CPUs), RamMB: int(body.Spec.RAMMB), StorageGB: int(body.Spec.StorageGB), Region: body.Spec.Region, Arch: body.Spec.Arch,
		Image: body.Spec.Image, GPUs: body.Spec.GPUs, GPUKind: body.Spec.GPUKind, GPUProfile: body.Spec.GPUProfile,
		HostID: body.Spec.HostID, Labels: body.Spec.Labels, HugePages: body.Spec.HugePages,
	})
	if err != nil {
		return err
	}
	who := r.Principal()
	e, err := s.desk.Explain(r.Context(), admission.Request{Kind: admission.Create, Spec: spec, Owner: who.Name, KeyID: who.KeyID})
	if err != nil {
		return err
	}
	out := explanationOf(&e)
	out.Spec = gen.Spec{
		CPUs: int32(spec.CPUs), RAMMB: int32(spec.RamMB), StorageGB: int32(spec.StorageGB), Region: spec.Region, Arch: spec.Arch, Image: spec.Image,
		GPUs: spec.GPUs, GPUKind: spec.GPUKind, GPUProfile: spec.GPUProfile, HostID: spec.HostID, Labels: spec.Labels, HugePages: spec.HugePages,
	}
	if !who.SeesAll() {
		hide(&out, &e)
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func explanationOf(e *admission.Explanation) gen.ScheduleExplanation {
	out := gen.ScheduleExplanation{
		Candidates: len(e.Candidates), Refused: len(e.Refusals), Gates: make([]gen.GateCount, 0),
	}
	for _, g := range e.Gates() {
		out.Gates = append(out.Gates, gen.GateCount{Gate: string(g.Gate), Hosts: g.Hosts})
	}
	for _, c := range e.Candidates {
		out.Hosts = append(out.Hosts, gen.ExplainedHost{
			HostID: c.HostID, Score: c.Score, FreeCPUs: c.FreeCPUs, FreeRAMMB: c.FreeRamMB, FreeStorageGB: c.FreeDiskGB,
			ImageLocal: c.ImageLocal, ArtifactLocal: c.ArtifactLocal,
		})
	}
	for i := range e.Refusals {
		out.Hosts = append(out.Hosts, refusedHost(&e.Refusals[i]))
	}
	err := e.Quota
	if err == nil {
		err = e.Err
	}
	if err != nil {
		out.Error = gen.ErrorInfo{Code: string(fleet.CodeOf(err)), Message: "internal error"}
		if fe := new(fleet.Error); errors.As(err, &fe) {
			out.Error.Message, out.Error.Details = fe.Message, fe.Details
		}
		return out
	}
	out.Placed, out.HostID, out.Policy = true, e.Decision.HostID, string(e.Decision.Policy)
	return out
}

func refusedHost(r *schedule.Refusal) gen.ExplainedHost {
	h := gen.ExplainedHost{HostID: r.HostID, Gate: string(r.Gate), Reason: r.String(), Want: r.Want, Have: r.Have}
	for _, s := range r.Short {
		h.Short = append(h.Short, gen.Shortage{Resource: string(s.Resource), Need: s.Need, Free: s.Free, Total: s.Total, Overhead: s.Overhead})
	}
	return h
}

// hide takes everything out that names a host or tells of one. What remains is
// whether it would be placed, the counts, and the quota's word.
func hide(out *gen.ScheduleExplanation, e *admission.Explanation) {
	out.HostID, out.Hosts = "", nil
	if e.Quota != nil || e.Err == nil {
		return
	}
	var counts []string
	for _, g := range out.Gates {
		counts = append(counts, fmt.Sprintf("%s refused %d", g.Gate, g.Hosts))
	}
	message := "no host can take it"
	if len(counts) > 0 {
		message += ": " + strings.Join(counts, ", ")
	}
	out.Error = gen.ErrorInfo{Code: out.Error.Code, Message: message, Details: map[string]string{
		fleet.DetailReason: strings.Join(counts, ", "), fleet.DetailRemedy: "ask for less, for other labels or another region, or try again later",
	}}
}
