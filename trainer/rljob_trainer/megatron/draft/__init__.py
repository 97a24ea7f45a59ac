"""An EAGLE-3 draft, the small model that guesses the policy's next tokens for servers, trained with the policy."""
