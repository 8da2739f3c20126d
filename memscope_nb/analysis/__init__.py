"""Pure questions to a profile: tables in, a frame or a frozen result out."""
