package decide

// Operations about what a playground is made from. No rule of a look asks for
// them: branches, credentials and jobs do.
type (
	// Branch makes the checkout of a branch, or has it go forward if it is clean.
	Branch struct{}
	// Pull fetches images.
	Pull struct{}
	// Auth writes the registry credentials beside the compose file.
	Auth struct{}
	// Mark writes the owner marker again, and nothing else.
	Mark struct{}
)

func (Branch) op() {}
func (Pull) op()   {}
func (Auth) op()   {}
func (Mark) op()   {}
